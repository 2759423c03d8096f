"""A tuning run over a made-up engine: what is measured, what is kept over an interruption, what a failure does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from include.generation.engine import Request
from include.settings import SettingsError
from include.tuning import run as run_module
from include.tuning.figures import summary_table
from include.tuning.plan import Candidate, Cell, Grid, TuningSettings, baseline_of, load_tuning
from include.tuning.run import TuningRun, open_folder, ratio, sole
from include.tuning.trials import Trial
from tests.generating import profile

TUNING = TuningSettings(
    grid=Grid(max_num_seqs=(8, 32), max_num_batched_tokens=(128, 512), windows=(1,), submit=("refill",)),
    candidates=(
        Candidate(name="plain"),
        Candidate(name="broken", engine_args={"quantization": "y"}),
        Candidate(name="low", engine_args={"quantization": "x"}),
    ),
    requests=100,
    probe_requests=32,
    finalists=2,
    repeats=2,
)
SPEED = {"baseline": 10.0, "incumbent": 15.0, "plain": 20.0, "low": 30.0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Cell | None]]:
    """The measurements that reach an engine. The more sequences, the faster; one candidate's engine does not start."""
    calls: list[tuple[str, Cell | None]] = []

    def answer(trial: Trial, cell: Cell | None, requests: int) -> dict[str, Any]:
        calls.append((trial.name, cell))
        if trial.name == "broken":
            return {"requests": requests, "error": "this GPU cannot do that"}
        seqs = cell.max_num_seqs if cell else int(trial.profile.engine_args.get("max_num_seqs", 16))
        rate = SPEED[trial.name] * seqs / 16 * (0.5 if requests < TUNING.requests else 1.0)  # ramp and drain
        tokens = {"prompt_tokens": 300 * requests, "cached_tokens": 100 * requests, "output_tokens": 16 * requests}
        figures = {"errors": 0, "seconds": requests / rate, "requests_per_s": rate, "latency_p95_s": 1.0}
        return {"requests": requests, **figures, **tokens}

    monkeypatch.setattr(Trial, "_asked", answer)
    return calls


def opened(folder: Path, tuning: TuningSettings = TUNING) -> TuningRun:
    prompts = [Request(id=str(n), messages=[{"role": "user", "content": f"mug {n}"}]) for n in range(5)]
    open_folder(folder, "title", profile(), tuning, prompts)
    return TuningRun(folder)


def test_the_fastest_candidate_leads_with_its_best_cell_and_its_ratio(tmp_path: Path, asked: list[Any]) -> None:
    result = opened(tmp_path).run()
    best = result["finalists"][0]
    assert best["candidate"] == "low"
    assert best["profile"]["engine_args"]["max_num_seqs"] == 32
    assert result["baseline"]["requests_per_s"] == 10.0
    assert best["ratio"] == 6.0
    assert (result["incumbent"]["requests_per_s"], result["incumbent"]["ratio"]) == (15.0, 1.5)
    assert [row["candidate"] for row in result["finalists"]] == ["low", "plain"]
    assert best["per_request"] == {"prompt_tokens": 300.0, "cached_tokens": 100.0, "output_tokens": 16.0}
    assert result["failures"] == {"broken": "this GPU cannot do that"}


def test_a_machine_that_becomes_faster_makes_no_finalist_faster(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Trial._asked

    def drifting(trial: Trial, cell: Cell | None, requests: int) -> dict[str, Any]:
        found = answer(trial, cell, requests)
        return found if found.get("error") else found | {"requests_per_s": 10.0 + len(asked)}

    monkeypatch.setattr(Trial, "_asked", drifting)
    result = opened(tmp_path).run()
    best, incumbent = result["finalists"][0]["rates"], result["incumbent"]["rates"]
    before, both = ratio(best, incumbent[: TUNING.repeats])[1], ratio(best, incumbent)[1]
    assert before is not None
    assert both is not None
    assert before[0] > 1
    assert both[0] < 1 < both[1]
    lines = dict(summary_table([result["baseline"], result["incumbent"]]))
    assert all(float(drift) > 1.5 for drift in lines["later half of the repeats over the earlier"])


def cut_off() -> Any:
    raise KeyboardInterrupt


def test_a_run_that_is_cut_off_leaves_the_result_of_the_engines_measured_so_far(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened(tmp_path)
    monkeypatch.setattr(run, "search", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    left = json.loads((tmp_path / "result.json").read_text())
    assert (left["complete"], left["incumbent"]["ratio"], left["finalists"]) == (False, 1.5, [])
    assert opened(tmp_path).run()["complete"]


def test_an_engine_is_hopeless_by_first_looks_only(tmp_path: Path, asked: list[Any]) -> None:
    run = opened(tmp_path)
    run.run()
    long = {r["candidate"] for r in run.notebook.rows if r["stage"] == "search" and r["requests"] == TUNING.requests}
    assert long == {"plain", "low"}  # a look at `low` shows 30, below 0.8 of the 40 that `plain` reached at length


def test_looks_that_never_fill_a_window_are_refused() -> None:
    with pytest.raises(ValueError, match="probe_requests 31 never fills the widest window, 32"):
        TuningSettings.model_validate(TUNING.model_dump() | {"probe_requests": 31})


def test_a_run_that_starts_again_measures_what_is_missing_only(tmp_path: Path, asked: list[Any]) -> None:
    whole = opened(tmp_path).run()
    notes = tmp_path / "measurements.jsonl"
    lines = notes.read_text().splitlines(keepends=True)
    notes.write_text("".join(lines[:-1]) + lines[-1][:20])  # killed while the last one was written
    asked.clear()
    assert opened(tmp_path).run()["finalists"] == whole["finalists"]
    assert len(asked) == 1


def test_a_finalist_like_the_incumbent_is_measured_in_its_own_name(tmp_path: Path, asked: list[Any]) -> None:
    first = opened(tmp_path / "first").run()["finalists"][0]
    folder, base = tmp_path / "second", profile()
    prompts = [Request(id="1", messages=[{"role": "user", "content": "mug"}])]
    open_folder(folder, "title", base, TUNING, prompts, incumbent=base.model_validate(first["profile"]), device="X")
    result = TuningRun(folder).run()
    assert result["incumbent"]["profile"] == result["finalists"][0]["profile"] == first["profile"]
    assert result["finalists"][0]["repeats"] == TUNING.repeats
    assert result["incumbent"]["repeats"] == 2 * TUNING.repeats
    with pytest.raises(SettingsError, match="another plan"):
        open_folder(folder, "title", base, TUNING, prompts, device="Y")


def test_a_folder_of_another_plan_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(SettingsError, match="another plan"):
        opened(tmp_path, TUNING.model_copy(update={"repeats": 5}))


def test_a_checkpoint_made_anew_under_its_path_is_another_candidate(tmp_path: Path) -> None:
    checkpoint = tmp_path / "w8a8"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_bytes(b"first")
    tuning = TUNING.model_copy(update={"candidates": (Candidate(name="w8a8", model=str(checkpoint)),)})
    opened(tmp_path / "run", tuning)
    opened(tmp_path / "run", tuning)
    (checkpoint / "model.safetensors").write_bytes(b"other")
    with pytest.raises(SettingsError, match=r"w8a8 was made anew since .*run was begun"):
        opened(tmp_path / "run", tuning)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    del plan["checkpoints"]  # of a version that kept none
    (tmp_path / "run" / "plan.json").write_text(json.dumps(plan))
    opened(tmp_path / "run", tuning)


def test_the_plan_knows_every_model_and_adapter_that_is_a_folder(tmp_path: Path) -> None:
    for name in ("base", "adapter", "promoted", "candidate"):
        (tmp_path / name).mkdir()
    base = profile(model=str(tmp_path / "base"), lora=str(tmp_path / "adapter"))
    incumbent = base.model_copy(update={"model": str(tmp_path / "promoted")})
    tuning = TUNING.model_copy(
        update={
            "candidates": (Candidate(name="own", model=str(tmp_path / "candidate")), Candidate(name="id", model="a/b"))
        }
    )
    open_folder(tmp_path / "run", "title", base, tuning, [Request(id="1", messages=[])], incumbent=incumbent)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert {Path(path).name for path in plan["checkpoints"]} == {"base", "adapter", "promoted", "candidate"}


def test_a_plan_that_can_measure_or_promote_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tuning.yaml"
    for changed, told in (
        (
            {"grid": {"max_num_seqs": [64], "max_num_batched_tokens": [32]}, "probe_requests": 128},
            "no cell of the grid is valid",
        ),
        ({"margin": 0.0}, "with margin 0 a finalist must be shown to be better"),
    ):
        file.write_text(json.dumps(TUNING.model_dump(mode="json") | changed))
        with pytest.raises(SettingsError, match=told):
            load_tuning(file)


def test_a_baseline_that_cannot_be_measured_ends_the_run_with_its_reason(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Trial, "_asked", lambda *_: {"requests": 1, "error": "no GPU"})
    with pytest.raises(RuntimeError, match="the baseline cannot be measured: no GPU"):
        opened(tmp_path).run()


def test_what_failed_for_a_while_is_measured_again_when_the_run_is_started_again(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, full = Trial._asked, {"requests": 1, "error": "No space left on device"}
    monkeypatch.setattr(Trial, "_asked", lambda *_: full)
    with pytest.raises(RuntimeError, match="No space left"):
        opened(tmp_path).run()
    monkeypatch.setattr(Trial, "_asked", lambda trial, *how: full if trial.name == "incumbent" else answer(trial, *how))
    assert opened(tmp_path).run()["incumbent"]["error"] == "No space left on device"
    monkeypatch.setattr(Trial, "_asked", answer)
    result = opened(tmp_path).run()
    assert (result["incumbent"]["error"], result["incumbent"]["repeats"]) == ("", 2 * TUNING.repeats)
    assert result["failures"] == {"broken": "this GPU cannot do that"}, "a cell's failure stands"
    broken = [name for name, _ in asked if name == "broken"]
    opened(tmp_path).run()
    assert [name for name, _ in asked if name == "broken"] == broken


def test_one_process_measures_into_a_folder(tmp_path: Path, asked: list[Any]) -> None:
    run = opened(tmp_path)
    with sole(tmp_path), pytest.raises(SettingsError, match="another process measures into"):
        run.run()
    assert not asked
    assert run.run()["complete"]


def test_rates_of_other_versions_are_not_mixed_in(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path)
    monkeypatch.setattr(run_module, "versions", lambda: {"vllm": "0.99.0"})
    with pytest.raises(SettingsError, match=r"measured under python .*, here are vllm 0\.99\.0: choose a new folder"):
        opened(tmp_path)


def test_the_interval_of_a_ratio_is_wide_for_repeats_that_differ() -> None:
    assert ratio([20.0, 20.1, 19.9], [10.0, 10.1, 9.9]) == (2.0, pytest.approx([1.96, 2.04], abs=0.02))
    found, bounds = ratio([10.0, 30.0], [10.0, 10.1])
    assert found == pytest.approx(1.99, abs=0.01)
    assert bounds is not None
    assert bounds[0] < 1 < bounds[1]
    assert ratio([], [1.0]) == (None, None)


def test_a_checkpoint_by_id_has_its_own_revision_and_the_baseline_its_devices(tmp_path: Path) -> None:
    base = profile()
    base = base.model_copy(update={"engine_args": base.engine_args | {"tensor_parallel_size": 2}})
    tried = Candidate(name="fp8", model="org/model-fp8", revision="abc").profile(base)
    assert (tried.model, tried.revision, tried.devices) == ("org/model-fp8", "abc", 2)
    assert baseline_of(base, TUNING).devices == 2
    assert Candidate(name="same").profile(base).revision == base.revision
