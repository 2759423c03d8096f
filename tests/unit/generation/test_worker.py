"""One bin: only missing texts are generated, every kind of answer ends where it should, nothing is lost or doubled."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from include import promotions
from include.extraction.keys import scope_of
from include.generation import session as session_module
from include.generation import worker as worker_module
from include.generation.engine import EngineDeadError, Output, Request
from include.generation.fingerprint import part_fingerprint
from include.generation.leases import device_name
from include.generation.session import Session
from include.generation.worker import generate_bins
from include.runs import Run, StopMarker
from tests.generating import Engines, StubEngine, generated, item, make_run, say


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return str(folder)


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[dict[str, Any], Engines]]:
    """Generates bin 0 with a stub engine; returns the manifest and the engines that were opened."""
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))

    def call(
        run: Run, answer: Any, engines: type[Engines] = Engines, tasks: tuple[str, ...] = ("title",)
    ) -> tuple[dict[str, Any], Engines]:
        made = engines(answer)
        monkeypatch.setattr(worker_module, "Session", lambda p, **k: Session(p, open_engine=made, **k))
        manifests = generate_bins(run, tasks, 0)
        return (manifests["title"] if len(tasks) == 1 else manifests), made

    return call


def asked(engines: Engines) -> list[str]:
    return [name for engine in engines.opened for name in engine.seen]


def test_every_text_gets_one_answer_and_a_second_call_starts_no_engine(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(23)], model=model)
    manifest, engines = generate(run, say("Ceramic mug"))
    assert sorted(row.text_id for row in generated(run)) == [f"{n:016x}" for n in range(23)]
    assert manifest == run.store.read_json(Run.manifest("title", "generate", 0))
    assert manifest["texts"] == {"answered": 23, "resumed": 0}
    assert manifest["rows"] == 23
    assert manifest["prefix_cache_hit_rate"] == 0.4
    json.dumps(manifest, allow_nan=False)

    taken = manifest["device_s"]
    manifest, engines = generate(run, say("another"))
    assert not engines.opened
    assert manifest["device_s"] == taken > 0, "what the first call took is not forgotten"
    assert manifest["texts"] == {"resumed": 23}
    assert {row.text for row in generated(run)} == {"Ceramic mug"}


def test_listings_with_one_text_share_one_generation(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n % 3, listing_id=f"L{n}") for n in range(30)], model=model)
    _, engines = generate(run, say("mug"))
    assert len(asked(engines)) == len(generated(run)) == 3


def test_after_a_death_at_half_only_the_missing_are_generated(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(100)], model=model)

    class Dying(StubEngine):
        def finished(self) -> list[Output]:
            if len(self.seen) > 50:
                raise EngineDeadError("the machine went away", kind="endpoint_refused", retryable=False)
            return super().finished()

    class DyingEngines(Engines):
        def make(self, profile: Any) -> StubEngine:
            return Dying(profile, self.answer)

    with pytest.raises(EngineDeadError, match="the machine went away"):
        generate(run, say("first"), DyingEngines)
    kept = {row.text_id for row in generated(run)}
    assert 40 <= len(kept) <= 50

    _, engines = generate(run, say("second"))
    rows = generated(run)
    assert len(rows) == len({row.text_id for row in rows}) == 100
    assert set(asked(engines)).isdisjoint(kept)
    assert len(asked(engines)) == 100 - len(kept)


@pytest.mark.parametrize("change", ["sampling", "template", "model"])
def test_what_affects_an_answer_makes_all_again(tmp_path: Path, model: str, generate, change: str, monkeypatch) -> None:
    items = [item(n) for n in range(10)]
    generate(make_run(tmp_path, items, model=model), say("old"))
    if change == "model":
        (Path(model) / "model.safetensors").write_bytes(b"retrained")
    other = {"sampling_params": {"max_tokens": 99}} if change == "sampling" else {}
    if change == "template":
        other = {"template": "description.j2"}
    run = make_run(tmp_path, items, model=model, **other)
    _, engines = generate(run, say("new"))
    assert len(asked(engines)) == 10
    assert {row.text for row in generated(run)} == {"new"}


def test_speed_settings_keep_finished_rows(tmp_path: Path, model: str, generate) -> None:
    items = [item(n) for n in range(10)]
    generate(make_run(tmp_path, items, model=model), say("old"))
    run = make_run(tmp_path, items, model=model, engine={"engine_args": {"max_num_seqs": 2}, "batch_size": 8})
    _, engines = generate(run, say("new"))
    assert not engines.opened


def test_a_torn_part_is_dropped_and_made_again(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(20)], model=model)
    generate(run, say("old"))
    last = run.store.list(Run.generated("title", 0))[-1]
    path = run.store.path(last)
    lost = {row.text_id for row in generated(run)} - {
        row.text_id
        for row in run.store.read_rows(run.store.list(Run.generated("title", 0))[:-1], type(generated(run)[0]))
    }
    os.truncate(path, os.path.getsize(path) // 2)
    _, engines = generate(run, say("new"))
    assert set(asked(engines)) == lost
    assert len(generated(run)) == 20


def test_an_overlong_row_is_set_aside_and_the_rest_go_on(tmp_path: Path, model: str, generate) -> None:
    def answer(request: Request) -> Output:
        if request.id == f"{57:016x}":
            return Output(id=request.id, error="input_too_long", prompt_tokens=9000, token_limit=900, row_at_fault=True)
        return say("fine")(request)

    run = make_run(tmp_path, [item(n) for n in range(100)], model=model)
    manifest, _ = generate(run, answer)
    rows = generated(run)
    assert len(rows) == 100
    assert [(r.text_id, r.error, r.quarantine) for r in rows if r.error] == [(f"{57:016x}", "input_too_long", True)]
    assert manifest["texts"]["input_too_long"] == 1
    _, engines = generate(run, answer)
    assert not engines.opened  # set aside for cause counts as done


def test_an_overlong_description_is_shortened_where_the_task_says_so(tmp_path: Path, model: str, generate) -> None:
    description = "It holds 350 ml of tea. " * 400

    def answer(request: Request) -> Output:
        length = len(request.messages[1]["content"])
        if length > 1000:
            return Output(
                id=request.id, error="input_too_long", prompt_tokens=length, token_limit=1000, row_at_fault=True
            )
        return say(request.messages[1]["content"])(request)

    run = make_run(tmp_path, [item(1, description=description)], model=model, overlong="shorten")
    generate(run, answer)
    (row,) = generated(run)
    assert not row.error
    assert 500 < len(row.text) <= 1000
    assert "tea.\n</listing>" in row.text  # cut at the end of a sentence


def test_a_cut_off_answer_is_asked_again_once_with_twice_the_tokens(tmp_path: Path, model: str, generate) -> None:
    tokens: list[int] = []

    def answer(request: Request) -> Output:
        tokens.append(int(request.sampling_params["max_tokens"]))
        return say("A grammatical sentence.", finish_reason="length")(request)

    run = make_run(tmp_path, [item(1)], model=model, sampling_params={"max_tokens": 30})
    manifest, _ = generate(run, answer)
    (row,) = generated(run)
    assert tokens == [30, 60]
    assert (row.finish_reason, row.attempts) == ("length", 2)
    assert manifest["texts"]["retried"] == 1


@pytest.mark.parametrize("empty", ["", "\n", "\u200b", " \ufeff "])
def test_an_empty_answer_is_asked_again_with_another_seed(tmp_path: Path, model: str, generate, empty: str) -> None:
    seen: list[dict[str, Any]] = []

    def answer(request: Request) -> Output:
        seen.append(dict(request.sampling_params))
        return say(empty if len(seen) == 1 else "Ceramic mug")(request)

    run = make_run(tmp_path, [item(1)], model=model, sampling_params={"temperature": 0.0, "seed": 7})
    generate(run, answer)
    (row,) = generated(run)
    assert (row.text, row.attempts) == ("Ceramic mug", 2)
    assert seen[1]["seed"] == 8
    assert seen[1]["min_tokens"] > 0
    assert seen[1]["temperature"] > 0


def test_our_own_failure_is_not_written_so_that_a_retry_asks_again(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(4)], model=model)
    broken = f"{2:016x}"

    def answer(request: Request) -> Output:
        if request.id == broken:
            return Output(id=request.id, error="engine_failed", detail="finish_reason abort")
        return say("fine")(request)

    manifest, engines = generate(run, answer)
    assert asked(engines).count(broken) == 2
    assert manifest["texts"]["engine_failed"] == 1
    assert broken not in {row.text_id for row in generated(run)}
    _, engines = generate(run, say("fine"))
    assert asked(engines) == [broken]


def test_a_stop_marker_of_another_bin_ends_the_bin_early_and_says_so(
    tmp_path: Path, model: str, generate, monkeypatch
) -> None:
    monkeypatch.setattr(worker_module, "STOP_POLL_SECONDS", 0.0)
    run = make_run(tmp_path, [item(n) for n in range(50)], model=model)
    marker = StopMarker(bin=9, reason="bin 9 rejects 80%", reject_rate=0.8, engine="stub")

    def answer(request: Request) -> Output:
        run.write_stop("title", marker)
        return say("fffffff")(request)

    manifest, _ = generate(run, answer)
    assert manifest["stopped"] == "bin 9 rejects 80%"
    assert len(generated(run)) == 8  # the window of the moment, and the one read ahead
    run.clear_stop("title")
    manifest, _ = generate(run, say("mug"))
    assert (manifest["stopped"], len(generated(run))) == ("", 50)


def test_a_bins_own_marker_goes_with_its_retry(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(5)], model=model)
    run.write_stop("title", StopMarker(bin=0, reason="old", reject_rate=0.8, engine="stub"))
    manifest, _ = generate(run, say("mug"))
    assert (manifest["stopped"], len(generated(run))) == ("", 5)


def test_a_missing_model_fails_at_once_and_keeps_finished_rows(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(5)], model=model)
    generate(run, say("mug"))
    (Path(model) / "config.json").unlink()
    with pytest.raises(session_module.EngineError, match=r"no model at .*make prepare"):
        generate(run, say("mug"))
    assert len(generated(run)) == 5


def test_task_models_on_one_base_share_one_engine(tmp_path: Path, model: str, generate) -> None:
    run = make_run(
        tmp_path,
        [item(n) for n in range(6)],
        model=model,
        engine={"lora": "adapters/title", "sampling_params": {"top_p": 0.8}},
        description_engine={"lora": "adapters/description", "sampling_params": {"top_p": 0.9}},
    )
    seen = []

    def answer(request: Request) -> Output:
        seen.append((request.adapter, request.sampling_params["top_p"]))
        return say("mug")(request)

    manifests, engines = generate(run, answer, tasks=("title", "description"))
    assert len(engines.opened) == 1
    assert engines.opened[0].profile.lora is None
    assert engines.adapters == [("adapters/title", "adapters/description")]
    assert set(seen) == {("adapters/title", 0.8), ("adapters/description", 0.9)}
    assert [(m["texts"]["answered"], m["requests"]) for m in manifests.values()] == [(6, 6), (6, 6)]
    assert [m["engine_starts"] for m in manifests.values()] == [1, 0]
    assert [m["engine_profile"] for m in manifests.values()] == ["stub", "stub-description"]
    assert len(generated(run)) == len(generated(run, "description")) == 6


def test_task_models_on_other_bases_run_one_after_the_other(tmp_path: Path, model: str, generate) -> None:
    other = Path(model).parent / "other"
    shutil.copytree(model, other)
    run = make_run(tmp_path, [item(n) for n in range(6)], model=model, description_engine={"model": str(other)})
    _, engines = generate(run, say("mug"), tasks=("title", "description"))
    assert [engine.profile.model for engine in engines.opened] == [model, str(other)]
    assert len(generated(run)) == len(generated(run, "description")) == 6


def test_results_are_on_disk_before_the_engine_goes(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(7)], model=model)
    seen = []

    class Watching(StubEngine):
        def shutdown(self) -> None:
            seen.append((len(generated(run)), run.store.read_json(Run.manifest("title", "generate", 0))["texts"]))

    class WatchingEngines(Engines):
        def make(self, profile: Any) -> StubEngine:
            return Watching(profile, self.answer)

    generate(run, say("mug"), WatchingEngines)
    assert seen == [(7, {"answered": 7, "resumed": 0})]


def test_the_promoted_profile_answers_and_the_manifest_says_so(tmp_path: Path, model: str, generate) -> None:
    run = make_run(tmp_path, [item(n) for n in range(20)], model=model)
    pipeline = run.spec.settings.pipeline.model_copy(update={"state_url": str(tmp_path / "state")})
    settings = run.spec.settings.model_copy(update={"pipeline": pipeline})
    run.spec = run.spec.model_copy(update={"settings": settings})
    configured = settings.engines["stub"]
    manifest, engines = generate(run, say("mug"))
    assert (manifest["promotion"], engines.opened[0].profile) == (None, configured)

    faster = configured.model_copy(update={"batch_size": 9, "engine_args": {"dtype": "bfloat16"}})
    stale_by = scope_of(settings, "title")
    rows = [{"profile": profile.model_dump(mode="json"), "requests_per_s": rate}
            for profile, rate in ((configured, 1.0), (faster, 3.5))]  # fmt: skip
    version = promotions.promote(settings, "stub", device_name(), faster, {"result": {"finalists": rows}}, "ann")
    manifest, engines = generate(run, say("cup"))
    assert (manifest["promotion"], manifest["engine_profile"]) == (version, "stub")
    assert manifest["tuned_requests_per_s"] == 3.5
    assert (engines.opened[0].profile, engines.opened[0].widest) == (faster, 9)
    assert scope_of(settings, "title") == stale_by  # no listing becomes stale
    task = settings.task("title")
    assert part_fingerprint(faster, task) != part_fingerprint(configured, task)  # other numerics, other parts
    assert {row.text for row in generated(run)} == {"cup"}

    promotions.roll_back(settings, "stub", device_name())
    manifest, _ = generate(run, say("mug"))
    assert (manifest["promotion"], manifest["tuned_requests_per_s"]) == (None, None)


MARK = "Zanzibar clove marker"


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        (f"Error code: 400 - {{'input': 'A {MARK} that'}}", "its detail quotes the listing and is left out"),
        ("9000 prompt tokens, 512 fit", "9000 prompt tokens, 512 fit"),
    ],
)
def test_log_lines_name_run_bin_and_listing_and_never_quote_a_listing(
    tmp_path: Path, model: str, generate, caplog: pytest.LogCaptureFixture, detail: str, told: str
) -> None:
    items = [item(n, title=f"{MARK} title {n}", description=f"A {MARK} that holds 350 ml.") for n in range(3)]

    def answer(request: Request) -> Output:
        if int(request.id, 16) == 1:
            return Output(id=request.id, error="request_rejected", detail=detail, row_at_fault=True)
        return say(f"{MARK} copy")(request)  # type: ignore[return-value]

    with caplog.at_level("DEBUG"):
        generate(make_run(tmp_path, items, model=model), answer)
    lines = [record.getMessage() for record in caplog.records]
    assert not [line for line in lines if "Zanzibar" in line]
    assert "run test: title bin 0 of 3 rows" in lines
    assert f"title bin 0: listing L1 of m1 (text {1:016x}): request_rejected ({told})" in lines
