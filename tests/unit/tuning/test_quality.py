"""Quality of a candidate against the incumbent's, by the nightly stages."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from include.generation import child
from include.generation import worker as worker_module
from include.generation.engine import Output, Request
from include.generation.fingerprint import folder_digest
from include.generation.session import Session
from include.generation.worker import generate_bins
from include.judging.scoring import score
from include.judging.stage import sample
from include.runs import Run
from include.settings import EngineProfile, Settings, SettingsError
from include.tuning import quality as quality_module
from include.tuning.promotion import choose, promote_best, verdict
from include.tuning.quality import compare_quality
from include.tuning.trials import write_json
from include.tuning.workload import items_of_runs, newest_runs
from include.validation.stage import validate
from tests.generating import Engines, StubEngine, item, make_run
from tests.tuned_runs import RATES, judged, night, tuned


class Side(Engines):
    """Each profile answers in its own way; the window tells them apart."""

    def __init__(self, ways: dict[int, Callable[[int], str]]) -> None:
        super().__init__(lambda request: None)
        self.ways = ways

    def make(self, profile: EngineProfile) -> StubEngine:
        way = self.ways[profile.batch_size]

        def answer(request: Request) -> Output:
            return Output(id=request.id, text=way(int(request.id, 16)), finish_reason="stop", output_tokens=3)

        return StubEngine(profile, answer)


class Asking:
    """A judge that fails what it finds to be for tea, and has no answer to what stands on a shelf."""

    def __call__(self, prompts: Any, sampling_params: Any, progress: Any = None) -> Any:
        for key, messages in prompts:
            bad = ["for tea"] if "mug for tea number" in str(messages) else []
            verdict = "fail" if bad else "pass"
            answer = {"unsupported": bad, "contradictory": [], "omitted": [], "verdict": verdict}
            yield Output(id=key, text="hm" if "mug on shelf" in str(messages) else json.dumps(answer))

    def report(self) -> dict[str, Any]:
        return {"requests_per_s": 1.0}


def good(number: int) -> str:
    return f"Blue ceramic mug number {number}"


def answer_all(monkeypatch: pytest.MonkeyPatch, ways: dict[int, Callable[[int], str]]) -> list[str]:
    """The stages run in this process, on stub engines; returns what was run."""
    engines, ran = Side(ways), list[str]()
    monkeypatch.setattr(worker_module, "Session", lambda p, **k: Session(p, open_engine=engines, **k))

    @contextmanager
    def judge(settings: Settings) -> Any:
        yield Asking()

    def in_process(module: str, command: str, *arguments: str) -> None:
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        run, task = Run.open(options["--run-dir"]), options["--task"]
        ran.append(f"{module} {command}")
        {
            "include.generation run": lambda: generate_bins(run, [task], int(options["--bin"])),
            "include.validation run": lambda: validate(run, task, int(options["--bin"])),
            "include.judging sample": lambda: sample(run, task),
            "include.judging score": lambda: score(run, task, judge),
        }[ran[-1]]()

    monkeypatch.setattr(quality_module, "run_stage", in_process)
    return ran


def test_each_side_is_a_nightly_run_and_equal_copy_holds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = night(home)
    folder = tuned(home, settings, RATES)
    some = lambda n: good(n) if n % 10 else f"Blue mug for tea number {n}"  # noqa: E731
    ran = answer_all(monkeypatch, {4: some, 5: some, 6: lambda n: f"Blue mug for tea number {n}"})
    found = compare_quality(folder, settings, [run.store.url])
    assert found == json.loads((folder / "quality.json").read_text())
    assert len(ran) == 3 * 4
    fast, wild = found["candidates"]["fast"], found["candidates"]["wild/../ü"]
    assert fast["holds"], fast["why"]
    assert (fast["pairs"], fast["difference"], fast["pass_rate"]) == (40, 0.0, pytest.approx(0.9))
    assert fast["incumbent_pass_rate"] == wild["incumbent_pass_rate"] == pytest.approx(0.9)
    assert fast["validators"]["all"]["pairs"] == 40
    assert (wild["holds"], wild["pass_rate"], wild["difference"]) == (False, 0.0, pytest.approx(-0.9))
    assert "judge pass rate may fall by" in wild["why"]
    assert {path.name for path in (folder / "quality").iterdir()} >= {"incumbent", "fast"}
    assert not (home / "state" / "engines").exists()  # no figures of a test among the nights'
    assert Run.open(found["runs"]["fast"]).spec.settings.judge == settings.judge


@pytest.mark.parametrize(("unread", "pairs", "lost"), [("fast", 40, 1), ("incumbent", 39, 0)])
def test_what_the_judge_cannot_read_of_a_finalist_alone_counts_against_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, unread: str, pairs: int, lost: int
) -> None:
    run, settings = night(home)
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    shelved = lambda n: good(n) if n != 7 else f"Blue ceramic mug on shelf number {n}"  # noqa: E731
    answer_all(monkeypatch, {4: good, 5: good} | {5 if unread == "fast" else 4: shelved})
    found = compare_quality(folder, settings, [run.store.url])["candidates"]["fast"]
    assert (found["pairs"], found["lost"]) == (pairs, lost)


def test_a_finalist_whose_stages_fail_does_not_keep_the_others_from_being_compared(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, settings = night(home)
    folder = tuned(home, settings, RATES)
    ran = answer_all(monkeypatch, {4: good, 5: good, 6: good})
    stage = quality_module.run_stage

    broken: Exception = RuntimeError("include.generation run ended with status 75")

    def breaking(module: str, command: str, *arguments: str) -> None:
        if "/fast/" in arguments[1]:
            raise broken
        stage(module, command, *arguments)

    monkeypatch.setattr(quality_module, "run_stage", breaking)
    with pytest.raises(RuntimeError, match=r"not compared: fast: include\.generation run ended with status 75"):
        compare_quality(folder, settings, [run.store.url])  # for Airflow to try again
    assert choose(folder)["candidate"] == "wild/../ü"
    assert "quality of fast could not be compared: include.generation run ended" in verdict(folder)
    broken = SettingsError("include.generation run ended with status 78")
    found = compare_quality(folder, settings, [run.store.url])  # no further try will help it
    assert set(found["candidates"]) == {"wild/../ü"}
    assert found["failed"] == {"fast": str(broken)}
    result = json.loads((folder / "result.json").read_text())
    write_json(folder / "result.json", result | {"finalists": result["finalists"][:1]})
    with pytest.raises(SettingsError, match="not compared: fast"):
        compare_quality(folder, settings, [run.store.url])
    with pytest.raises(
        ValueError, match=r"quality of fast could not be compared: include\.generation run ended with status 78"
    ):
        choose(folder)
    monkeypatch.setattr(quality_module, "run_stage", stage)
    assert compare_quality(folder, settings, [run.store.url])["candidates"]["fast"]["holds"]
    assert ran


def test_a_failing_incumbent_ends_the_comparison(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = night(home)
    folder = tuned(home, settings, RATES)

    def broken(*_: str) -> None:
        raise RuntimeError("include.generation run ended with status 75")

    monkeypatch.setattr(quality_module, "run_stage", broken)
    with pytest.raises(RuntimeError, match=r"^include\.generation run ended"):
        compare_quality(folder, settings, [run.store.url])
    assert not (folder / "quality.json").exists()


def test_copy_of_a_checkpoint_made_anew_is_neither_compared_nor_promoted(home: Path) -> None:
    run, settings = night(home)
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    judged(folder, fast=True)
    plan = json.loads((folder / "plan.json").read_text())
    write_json(folder / "plan.json", plan | {"checkpoints": {str(home / "model"): folder_digest(str(home / "model"))}})
    assert choose(folder)["candidate"] == "fast"
    (home / "model" / "model.safetensors").write_bytes(b"others")
    with pytest.raises(SettingsError, match="model was made anew since"):
        compare_quality(folder, settings, [run.store.url])
    with pytest.raises(ValueError, match=r"nothing is promoted: .*model was made anew since"):
        promote_best(folder, settings, "ann")


def test_held_out_listings_are_an_even_draw_of_distinct_texts(home: Path) -> None:
    items = [item(n) for n in range(40)] + [item(3, listing_id=f"twin {n}") for n in range(200)]
    urls = [make_run(home / name, items, model=str(home / "model")).store.url for name in ("one", "two")]
    drawn = items_of_runs(urls, "title", limit=30, seed=1)
    assert len({found.text_id for found in drawn}) == len(drawn) == 30
    assert [found.text_id for found in items_of_runs(urls[::-1], "title", limit=30, seed=1)] == [
        i.text_id for i in drawn
    ]
    assert len(items_of_runs(urls, "title", limit=500, seed=1)) == 40
    often = Counter(
        found.text_id for seed in range(400) for found in items_of_runs(urls[:1], "title", limit=10, seed=seed)
    )
    assert len(often) == 40
    assert max(often.values()) < 2 * min(often.values())  # 100 each, the one with 200 twins too


def test_without_a_finished_run_the_next_step_is_told(home: Path) -> None:
    _, settings = night(home)
    with pytest.raises(FileNotFoundError, match="holds no finished tuning run: `python -m include"):
        compare_quality(home / "nothing", settings, [])


def test_copy_is_compared_on_the_device_that_was_tuned(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = night(home)
    folder = tuned(home, settings, RATES)
    monkeypatch.setattr(quality_module, "device_name", lambda: "cpu")
    with pytest.raises(SettingsError, match=r"measured on NVIDIA X.*this is cpu"):
        compare_quality(folder, settings, [run.store.url])


def test_a_foreign_script_is_never_allowed_whatever_the_margin(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = night(home)
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    answer_all(monkeypatch, {4: good, 5: lambda n: good(n) if n != 7 else f"Blue mug 杯子 number {n}"})
    found = compare_quality(folder, settings, [run.store.url])["candidates"]["fast"]
    assert not found["holds"]
    assert found["why"] == "script_leak in 1 texts where the incumbent has none: never allowed"
    assert found["validators"]["all"]["holds"]  # one in forty is within the margin
    assert found["validators"]["script_leak"]["lost"] == 1


def test_a_validators_fall_is_named_and_a_refused_judge_refuses(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = night(home, mode="calibrated")
    settings = settings.model_copy(update={"judge": settings.judge.model_copy(update={"calibration": None})})
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    answer_all(monkeypatch, {4: good, 5: lambda n: good(n) if n % 2 else f"Blue mug number 9{n}999"})
    found = compare_quality(folder, settings, [run.store.url])["candidates"]["fast"]
    assert "judge refused: the judge has no calibration" in found["why"]
    assert "all validators may fall by" in found["why"]
    assert "number_not_in_source may fall by" in found["why"]
    assert found["pairs"] == 20  # the judge reads what the validators accept
    with pytest.raises(SettingsError, match="no listing to compare"):
        compare_quality(folder, settings, [])


def test_a_stage_is_a_child_that_ends_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def fake(command: list[str], **options: Any) -> Any:
        seen.update(options["env"])
        return type("Done", (), {"returncode": int(command[-1])})

    monkeypatch.setattr(child.subprocess, "run", fake)
    monkeypatch.setenv("LISTING_PARENT_PID", "1")
    monkeypatch.setenv("LISTING_RESULT_FILE", "/result")
    child.run_stage("include.judging", "0")
    assert (seen["LISTING_PARENT_PID"], seen.get("LISTING_RESULT_FILE")) == (str(os.getpid()), None)
    with pytest.raises(SettingsError, match="status 78"):
        child.run_stage("include.judging", "78")
    with pytest.raises(RuntimeError, match="status 75"):
        child.run_stage("include.judging", "75")


def test_the_newest_runs_with_work_are_the_default(home: Path) -> None:
    run, settings = night(home)
    pipeline = settings.pipeline.model_copy(update={"data_url": str(home / "data")})
    settings = settings.model_copy(update={"pipeline": pipeline})
    assert newest_runs(settings, "title") == []
    run.store.write_json(run.manifest("title", "gate"), {"status": "empty"})
    assert newest_runs(settings, "title") == []
    run.store.write_json(run.manifest("title", "gate"), {"status": "failed"})
    assert newest_runs(settings, "title") == [run.store.url]
    run.store.write_bytes(run.manifest("title", "gate"), b'{"status": "fai')
    assert newest_runs(settings, "title") == []
