"""Quality of a candidate against the incumbent's, and what it takes to be promoted."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from include import promotions
from include.generation import child
from include.generation import worker as worker_module
from include.generation.engine import Output, Request
from include.generation.fingerprint import folder_digest
from include.generation.session import Session
from include.generation.worker import generate_bins
from include.judging.estimation import JudgeAccuracy
from include.judging.pairing import compared, paired_difference, pairs_needed
from include.judging.scoring import score
from include.judging.stage import sample
from include.runs import Run
from include.settings import EngineProfile, Settings, SettingsError, digest
from include.tuning import __main__ as commands
from include.tuning import quality as quality_module
from include.tuning.plan import TuningSettings
from include.tuning.promotion import choose, note_question, promote_best, roll_back_task, verdict
from include.tuning.quality import compare_quality
from include.tuning.trials import write_json
from include.tuning.workload import items_of_runs, newest_runs
from include.validation.stage import validate
from tests.generating import Engines, StubEngine, item, make_run

TUNING = TuningSettings.model_validate({
    "grid": {"max_num_seqs": [2], "max_num_batched_tokens": [64]},
    "candidates": [{"name": "fast"}, {"name": "wild/../ü"}], "held_out": 50, "margin": 0.1,
})  # fmt: skip


def test_the_paired_interval_is_agresti_and_mins() -> None:
    """794 say yes twice, 150 yes then no, 86 no then yes, 570 no twice: the prime minister's example, by hand.

    (86.5 - 150.5)/1602 = -0.03995; its standard error sqrt(237 - 64^2/1602)/1602 = 0.009558; times 1.95996.
    """
    assert paired_difference(86, 150, 1600) == pytest.approx((-0.05868, -0.02122), abs=1e-5)
    assert paired_difference(0, 0, 0)[0] < -0.9


def test_a_judge_that_errs_stretches_the_interval() -> None:
    plain = paired_difference(86, 150, 1600)
    known = paired_difference(86, 150, 1600, JudgeAccuracy(0.9, 0.7))  # Youden index 0.6
    assert known == pytest.approx([bound / 0.6 for bound in plain])
    measured = paired_difference(86, 150, 1600, JudgeAccuracy(0.9, 0.7, 50, 50))
    assert measured[0] < known[0]
    assert measured[1] > known[1]
    assert paired_difference(86, 150, 1600, JudgeAccuracy(0.4, 0.5)) == (-1.0, 1.0)


@pytest.mark.parametrize(("gained", "lost"), [(0.05, 0.08), (0.02, 0.02), (0.01, 0.10), (0.2, 0.25)])
def test_the_interval_covers_the_truth_as_often_as_it_says(gained: float, lost: float) -> None:
    draws = np.random.default_rng(5).multinomial(150, [gained, lost, 1 - gained - lost], size=4000)
    bounds = [paired_difference(int(g), int(b), 150) for g, b, _ in draws]
    covered = np.mean([low <= gained - lost <= high for low, high in bounds])
    assert 0.94 < covered < 0.985


def test_too_few_pairs_are_refused_with_the_number_that_is_needed() -> None:
    passed = {str(n): n % 6 != 0 for n in range(60)}
    other = {str(n): n % 6 != 1 for n in range(60)}  # as good, on other listings: ten gained, ten lost
    found = compared("x", other, passed, TUNING)
    assert not found["holds"]
    needed = int(re.search(r"x: too few pairs, 60 of about (\d+) needed", found["why"])[1])  # type: ignore[index]
    assert needed > 60
    lows = [paired_difference(10 / 60 * n, 10 / 60 * n, n)[0] for n in (needed - 1, needed)]
    assert lows[0] <= -0.1 < lows[1]
    tenfold = ({f"{key}/{n}": ok for key, ok in side.items() for n in range(10)} for side in (other, passed))
    assert compared("x", *tenfold, TUNING)["holds"]
    assert compared("x", {}, passed, TUNING)["why"].startswith("x: too few pairs, 0 of")
    assert pairs_needed(0, 1, 10, TUNING) == 0  # a fall of ten points: no number shows that it stays below ten
    coarse = JudgeAccuracy(0.9, 0.9, 8, 8)  # so few labels that a fall seen may be any
    assert pairs_needed(100, 105, 600, TUNING) > 600
    assert (
        pairs_needed(100, 130, 600, TUNING, coarse) == 0 < pairs_needed(100, 130, 600, TUNING, JudgeAccuracy(0.9, 0.9))
    )
    assert pairs_needed(0, 0, 0, TUNING, JudgeAccuracy(0.5, 0.5)) == 0
    worse = compared("x", dict.fromkeys(passed, False), passed, TUNING)
    assert worse["why"].startswith("x may fall by 9")


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setenv("LISTING_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setattr(quality_module, "device_name", lambda: "NVIDIA X")
    return tmp_path


def night(home: Path, **changes: Any) -> tuple[Run, Settings]:
    """A night of 40 listings, two of which share a text; the judge is taken at its word unless the gate says otherwise."""
    items = [item(n) for n in range(40)] + [item(3, listing_id="twin")]
    run = make_run(home / "data", items, model=str(home / "model"))
    settings, title = run.spec.settings, run.spec.settings.task("title")
    gate = title.gate.model_copy(update={"mode": "demo"} | changes)
    pipeline = settings.pipeline.model_copy(update={"state_url": str(home / "state")})
    tasks = settings.tasks | {"title": title.model_copy(update={"gate": gate})}
    return run, settings.model_copy(update={"tasks": tasks, "pipeline": pipeline})


def tuned(home: Path, settings: Settings, rates: dict[str, list[float]]) -> Path:
    """The folder of a tuning run with these rates; finalists differ in their window: 5, 6, …"""
    base, folder = settings.engines["stub"], home / "tuning"
    folder.mkdir(exist_ok=True)
    rows = [
        {"candidate": name, "rates": found, "requests_per_s": sorted(found)[len(found) // 2] if found else None,
         "profile": base.model_copy(update={"batch_size": 4 + n}).model_dump(mode="json")}
        for n, (name, found) in enumerate(rates.items())
    ]  # fmt: skip
    plan = {"task": "title", "base": base.model_dump(mode="json"), "incumbent": rows[0]["profile"], "device": "NVIDIA X",
            "tuning": TUNING.model_dump(mode="json"), "started_at": "2026-03-02T01:00:00+00:00"}  # fmt: skip
    write_json(folder / "plan.json", plan)
    write_json(folder / "result.json", {"incumbent": rows[0], "finalists": rows[1:], "versions": {"vllm": "0.32.0"}})
    return folder


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


RATES = {"incumbent": [100.0, 101.0, 99.0], "fast": [120.0, 121.0, 119.5], "wild/../ü": [110.0, 111.0, 110.5]}


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


def judged(folder: Path, **holds: bool) -> None:
    rows = {row["candidate"]: row for row in json.loads((folder / "result.json").read_text())["finalists"]}
    write_json(folder / "quality.json", {"candidates": {
        name: {"holds": ok, "why": "fine" if ok else "judge pass rate may fall", "profile": digest(rows[name]["profile"])}
        for name, ok in holds.items()
    }})  # fmt: skip


def test_the_fastest_finalist_whose_quality_holds_is_promoted_and_rolled_back(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings = night(home)
    monkeypatch.setattr(commands, "load_settings", lambda: settings)
    folder = tuned(home, settings, RATES | {"fast": [120.0, 121.0, 119.5], "slower": [99.0, 100.0, 101.0]})
    judged(folder, fast=False, **{"wild/../ü": True}, slower=True)
    assert commands.main(["promote", "--dir", str(folder), "--approved-by", "ann"]) == 0
    assert "wild/../ü is in force" in capsys.readouterr().out
    assert promotions.in_force(settings, "stub", "NVIDIA X").batch_size == 6
    stored = promotions.current(settings, "stub", "NVIDIA X")
    assert stored is not None
    assert (stored.approved_by, stored.versions, stored.evidence["quality"]["why"]) == (
        "ann",
        {"vllm": "0.32.0"},
        "fine",
    )
    assert commands.main(["roll-back", "--task", "title"]) == 0
    assert "the configured profile is in force" in capsys.readouterr().out
    assert promotions.in_force(settings, "stub", "NVIDIA X") == settings.engines["stub"]
    assert commands.main(["roll-back", "--task", "title"]) == 2
    assert "nothing is promoted" in capsys.readouterr().err


@pytest.mark.parametrize(("side", "told"), [("incumbent", "the incumbent failed"), ("fast", "fast failed")])
def test_repeats_that_an_engine_did_not_survive_are_no_proof(home: Path, side: str, told: str) -> None:
    _, settings = night(home)
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    judged(folder, fast=True)
    assert choose(folder)["candidate"] == "fast"
    result = json.loads((folder / "result.json").read_text())
    row = result["incumbent"] if side == "incumbent" else result["finalists"][0]
    row["error"] = "the engine's process ended with status -9"
    write_json(folder / "result.json", result)
    with pytest.raises(ValueError, match=rf"{told} in a repeat: the engine's process ended with status -9"):
        choose(folder)


def test_a_promotion_replaces_what_it_was_compared_with_and_nothing_else(home: Path) -> None:
    """Two runs begin with one incumbent: the second one's finalist was never compared with the first one's."""
    _, settings = night(home)
    folder = tuned(home, settings, {name: RATES[name] for name in ("incumbent", "fast")})
    judged(folder, fast=True)
    assert "fast is in force" in promote_best(folder, settings, "ann")
    assert "fast is in force" in promote_best(folder, settings, "ann"), "a task tried again"
    other = tuned(home, settings, RATES | {"fast": []})
    judged(other, **{"wild/../ü": True})
    with pytest.raises(ValueError, match=r"another profile is in force on NVIDIA X since.*tune again"):
        promote_best(other, settings, "ann")
    assert promotions.in_force(settings, "stub", "NVIDIA X").batch_size == 5


def test_an_approval_is_for_the_profile_that_the_approver_saw(home: Path) -> None:
    _, settings = night(home)
    folder = tuned(home, settings, RATES)
    judged(folder, **{"fast": True, "wild/../ü": True})
    with pytest.raises(ValueError, match="the approver was asked about another: clear `approve`"):
        promote_best(folder, settings, "ann", as_asked=True)
    note_question(folder)
    judged(folder, **{"fast": False, "wild/../ü": True})  # compared again, on more listings
    with pytest.raises(ValueError, match=r"the choice is wild/\.\./ü now"):
        promote_best(folder, settings, "ann", as_asked=True)
    judged(folder, **{"fast": True, "wild/../ü": True})
    assert "fast is in force" in promote_best(folder, settings, "ann", as_asked=True)


def test_a_roll_back_that_stops_half_way_goes_on_with_the_others_and_names_what_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, settings = night(home)
    faster = settings.engines["stub"].model_copy(update={"batch_size": 9})
    for device in ("GPU-A", "GPU-B", "GPU-C"):
        promotions.promote(settings, "stub", device, faster, {}, "ann")
    whole = promotions.roll_back

    def full(settings: Settings, name: str, device: str) -> str | None:
        if device == "GPU-B":
            raise OSError(28, "No space left on device")
        return whole(settings, name, device)

    monkeypatch.setattr(promotions, "roll_back", full)
    with pytest.raises(RuntimeError, match=r"GPU-A: the configured.*not rolled back: GPU-B: .*No space left"):
        roll_back_task(settings, "title")
    windows = [promotions.in_force(settings, "stub", device).batch_size for device in ("GPU-A", "GPU-B", "GPU-C")]
    assert windows == [4, 9, 4]


def test_what_is_not_faster_not_compared_or_not_as_good_is_refused_in_one_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, settings = night(home)
    monkeypatch.setattr(commands, "load_settings", lambda: settings)

    def refusal(folder: Path) -> str:
        assert commands.main(["promote", "--dir", str(folder)]) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: nothing is promoted: ")
        assert told.count("\n") == 1
        return told

    assert "no finished tuning run" in refusal(home)
    assert "no finalist" in refusal(tuned(home, settings, {"incumbent": [100.0, 101.0]}))
    assert "incumbent was not measured" in refusal(tuned(home, settings, {"incumbent": [], "fast": [5.0, 6.0]}))
    assert "could not be measured" in refusal(tuned(home, settings, {"incumbent": [1.0, 1.1], "fast": []}))
    assert "for want of repeats" in refusal(tuned(home, settings, {"incumbent": [1.0, 1.1], "fast": [5.0]}))
    noise = {"incumbent": [100.0, 101.0, 99.0], "fast": [101.0, 99.5, 102.0]}
    assert "not shown to be faster" in refusal(tuned(home, settings, noise))
    folder = tuned(home, settings, RATES)
    assert "quality of fast was not compared" in refusal(folder)
    judged(folder, fast=False)
    assert "fast: judge pass rate may fall" in refusal(folder)
    judged(folder, fast=True)
    newer = settings.engines | {"stub": settings.engines["stub"].model_copy(update={"lineage": "newer"})}
    monkeypatch.setattr(commands, "load_settings", lambda: settings.model_copy(update={"engines": newer}))
    assert "another model since" in refusal(folder)
