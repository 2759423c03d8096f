"""The gate's decision, its closed accounting and what it hands to alert and load."""

from datetime import UTC, datetime, timedelta

import pytest

from include.judging import drift
from include.judging import gate as gate_module
from include.judging.calibration import Calibration, store_calibration
from include.judging.estimation import corrected_rate, sampled_rate
from include.judging.gate import decide
from include.judging.rubric import rubric_version
from include.judging.stage import sample
from include.records import JudgeScore, JudgeVerdict, QuarantinedRow, RunCounts, SampledText
from include.runs import Run
from tests.unit.judging.conftest import TASK, judged, verdict

CENSUS = {"margin": 0.01}  # so small that every listing must be judged
PASSED = {"status": "passed", "expectations": []}


@pytest.fixture(autouse=True)
def suite(monkeypatch):
    """The validators' suite is tested with the validators; here only its result matters."""
    found = dict(PASSED)
    monkeypatch.setattr(gate_module, "suite_result", lambda run, task: found)
    return found


def judge(run, passes):
    """Draws the sample and writes a judge answer for each text by a function of its id."""
    sample(run, TASK)
    rows = [judged(row, passes(row.text_id)) for row in run.store.read_rows(run.sampled(TASK), SampledText)]
    if rows:
        run.store.write_part(f"{run.judged(TASK)}/part-00000.parquet", JudgeScore, rows)


def closed(manifest):
    RunCounts.from_dict(manifest["counts"]).check_closed()
    return manifest["counts"]


def test_good_copy_passes(make_run):
    run = make_run([[verdict(i) for i in range(40)], [verdict(100 + i) for i in range(20)]], counts={"unchanged": 7})
    run.store.write_json(
        run.plan(TASK),
        run.store.read_json(run.plan(TASK)) | {"counts": RunCounts(extracted=67, unchanged=7).to_dict()},
    )
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert manifest["status"] == "passed", manifest["reasons"]
    assert manifest["pass_rate"] == 1.0
    assert manifest["mode"] == "demo"
    assert "not calibrated" in manifest["override"]
    assert closed(manifest)["accepted"] == 60
    assert run.store.read_json(run.manifest(TASK, "gate"))["status"] == "passed"


def test_bad_copy_fails_with_figures_examples_and_a_next_step(make_run):
    run = make_run([[verdict(i) for i in range(60)]], gate=CENSUS)
    judge(run, lambda t: int(t[1:]) % 5 == 0)
    manifest = decide(run, TASK)
    assert manifest["status"] == "failed"
    assert any("baseline 50.0% - margin 1.0%" in reason for reason in manifest["reasons"])
    assert len(manifest["sample_ids"]) == len(set(manifest["sample_ids"])) == 5
    assert "dishwasher safe" in manifest["examples"][0]["detail"]
    assert manifest["next_step"]
    assert {"name", "observed", "limit", "ok"} == set(manifest["checks"][0])
    assert closed(manifest)["quarantined"] == {"judge_failed": 48}


def test_a_failed_verdict_reaches_every_listing_that_shares_the_text(make_run):
    rows = [verdict(i, text_id="shared" if i < 6 else None, merchant=f"m{i % 2}") for i in range(60)]
    run = make_run([rows], gate=CENSUS)
    judge(run, lambda t: t != "shared")
    manifest = decide(run, TASK)
    withheld = list(run.store.read_rows(run.quarantine(TASK, "judge"), QuarantinedRow))
    assert {row.listing_id for row in withheld} == {f"L{i:05d}" for i in range(6)}
    assert {row.reason for row in withheld} == {"judge_failed"}
    assert all("dishwasher safe" in row.detail for row in withheld)
    assert manifest["failed_text_ids"] == ["shared"]
    assert closed(manifest) | {"accepted": 54, "quarantined": {"judge_failed": 6}} == manifest["counts"]
    assert manifest["pass_rate"] == pytest.approx(0.9), "computed before the failed texts are withheld"


def test_deciding_twice_gives_the_same(make_run):
    run = make_run([[verdict(i) for i in range(60)]], gate=CENSUS)
    judge(run, lambda t: int(t[1:]) % 3 > 0)
    first = decide(run, TASK)
    assert decide(run, TASK) == first
    assert len(list(run.store.read_rows(run.quarantine(TASK, "judge"), QuarantinedRow))) == 20


def test_no_work_is_an_empty_green_run(make_run):
    run = make_run([], counts={"extracted": 5, "unchanged": 5})
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert (manifest["status"], manifest["reasons"]) == ("empty", [])
    assert closed(manifest)["unchanged"] == 5


def test_every_row_rejected_fails(make_run):
    run = make_run([[verdict(i, ok=False) for i in range(10)]])
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert manifest["status"] == "failed"
    assert any("every one of 10" in reason for reason in manifest["reasons"])
    assert manifest["pass_rate"] is None
    assert manifest["top_reasons"] == [{"reason": "too_long", "listings": 10}]


@pytest.mark.parametrize(
    ("result", "status"),
    [({"status": "failed"}, "failed"), ({"status": "broken", "error": "no expectations"}, "broken"), ({}, "broken")],
)
def test_a_suite_that_fails_or_says_nothing_never_passes(make_run, suite, result, status):
    suite.clear()
    suite.update(result)
    run = make_run([[verdict(i) for i in range(60)]])
    judge(run, lambda t: True)
    assert decide(run, TASK)["status"] == status


def test_a_dead_bin_counts_as_errored_and_too_many_fail(make_run):
    full = [[verdict(i) for i in range(5000)]]
    run = make_run([*full, None])
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert manifest["status"] == "passed", "100 of 5,100 listings are missing, 98% are needed"
    assert closed(manifest)["errored"] == 100
    assert manifest["missing_bins"] == [1]
    poor = make_run([full[0][:500], None])
    judge(poor, lambda t: True)
    manifest = decide(poor, TASK)
    assert manifest["status"] == "failed"
    assert "incomplete" in manifest["reasons"][0]


def test_judge_errors_leave_the_rate_and_above_the_limit_break_the_gate(make_run):
    run = make_run([[verdict(i) for i in range(60)]], gate=CENSUS)
    judge(run, lambda t: JudgeVerdict.ERROR if t in ("t00000", "t00001") else True)
    manifest = decide(run, TASK)
    assert (manifest["status"], manifest["pass_rate"]) == ("passed", 1.0)
    assert (manifest["judge"]["errors"], manifest["judge"]["evaluable"]) == (2, manifest["judge"]["sampled"] - 2)
    judge(run, lambda t: JudgeVerdict.ERROR if int(t[1:]) < 30 else True)
    assert decide(run, TASK)["status"] == "broken"


def test_not_evaluable_texts_are_withheld_and_never_count_as_passes(make_run):
    run = make_run([[verdict(i) for i in range(60)]], gate=CENSUS)
    judge(run, lambda t: JudgeVerdict.NOT_EVALUABLE if t == "t00000" else True)
    manifest = decide(run, TASK)
    assert manifest["judge"]["passed"] == manifest["judge"]["evaluable"] == manifest["judge"]["sampled"] - 1
    assert closed(manifest)["quarantined"] == {"judge_not_evaluable": 1}


def test_a_judge_that_never_ran_breaks_the_gate(make_run):
    run = make_run([[verdict(i) for i in range(60)]])
    assert decide(run, TASK)["status"] == "broken"
    sample(run, TASK)
    manifest = decide(run, TASK)
    assert manifest["status"] == "broken"
    assert any("answered for 0 of" in reason for reason in manifest["reasons"])


def test_accounting_that_does_not_close_publishes_nothing(make_run):
    run = make_run([[verdict(i) for i in range(60)]])
    plan = run.store.read_json(run.plan(TASK))
    run.store.write_json(run.plan(TASK), plan | {"counts": RunCounts(extracted=61).to_dict()})
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert manifest["status"] == "broken"
    assert any("does not close" in reason for reason in manifest["reasons"])


def test_too_small_a_sample_that_cannot_show_the_rate_says_underpowered(make_run):
    run = make_run([[verdict(i) for i in range(2000)]], gate={"baseline": 0.9, "margin": 0.02})
    judge(run, lambda t: int(t[1:]) % 10 > 0)
    manifest = decide(run, TASK)
    assert manifest["judge"]["status"] == "underpowered"
    assert manifest["status"] == "failed"
    assert manifest["reasons"][0].startswith("underpowered: ")


def test_calibrated_mode_without_a_calibration_refuses(make_run):
    run = make_run([[verdict(i) for i in range(60)]], gate={"mode": "calibrated"})
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert manifest["status"] == "broken"
    assert any("no calibration" in reason for reason in manifest["reasons"])
    assert manifest["override"] == ""


def test_an_explicit_override_is_recorded(make_run):
    why = "first week, labels are being collected"
    run = make_run([[verdict(i) for i in range(60)]], gate={"mode": "calibrated", "override": why})
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert manifest["status"] == "passed"
    assert why in manifest["override"]
    assert "no calibration" in manifest["override"]


def in_force(run, **values):
    """Stores a calibration of the run's own judge and rubric, but for `values`."""
    settings = run.spec.settings
    fields = {
        "version": "20260301-x",
        "created_at": datetime.now(UTC),
        "judge_model": settings.engines[settings.judge.engine].lineage,
        "rubric": rubric_version(settings.judge),
        "labels": "l",
        "sensitivity": 0.95,
        "specificity": 0.9,
        "passed_pairs": 1000,
        "failed_pairs": 500,
        "kappa": 0.8,
    }
    found = Calibration(**(fields | values))
    store_calibration(settings, found)
    return found


DEFECTS = [
    ({"created_at": datetime.now(UTC) - timedelta(days=400)}, "days old"),
    ({"judge_model": "another judge"}, "for judge 'another judge'"),
    ({"rubric": "older"}, "for rubric older"),
    ({"kappa": 0.016}, "too weak: kappa 0.016"),
    ({"specificity": 0.2}, "too weak: Youden index 0.150"),
]


@pytest.mark.parametrize(("defect", "reason"), DEFECTS)
def test_an_unfit_calibration_is_refused_and_only_an_override_lets_copy_out(make_run, defect, reason):
    run = make_run([[verdict(i) for i in range(60)]], gate={"mode": "calibrated"})
    in_force(run, **defect)
    judge(run, lambda t: True)
    manifest = decide(run, TASK)
    assert manifest["status"] == "broken", "not a pass, although every text passed the judge"
    assert any(
        f"judge refused: the {'judge is' if 'weak' in reason else 'calibration is'}" in r for r in manifest["reasons"]
    )
    assert any(reason in r for r in manifest["reasons"])
    assert manifest["judge"]["calibration"] is None, "what is refused corrects nothing"
    overridden = make_run([[verdict(i) for i in range(60)]], gate={"mode": "calibrated", "override": "we know"})
    judge(overridden, lambda t: True)
    manifest = decide(overridden, TASK)
    assert manifest["status"] == "passed", manifest["reasons"]
    assert "we know" in manifest["override"]
    assert reason in manifest["override"]


def test_a_calibration_in_force_corrects_the_rate_and_needs_no_override(make_run):
    run = make_run([[verdict(i) for i in range(60)]], gate=CENSUS | {"mode": "calibrated", "override": "not needed"})
    found = in_force(run, version="20260301-good")
    judge(run, lambda t: int(t[1:]) % 5 > 0)
    manifest = decide(run, TASK)
    raw = sampled_rate(run.store.read_rows(run.judged(TASK), JudgeScore), 60).rate
    assert raw == pytest.approx(0.8)
    assert manifest["pass_rate"] == pytest.approx(corrected_rate(raw, found.accuracy))
    assert manifest["judge"]["raw_pass_rate"] == pytest.approx(raw)
    assert manifest["judge"]["calibration"] == "20260301-good"
    assert manifest["override"] == ""


def test_a_score_below_the_calibrated_threshold_fails_the_text(make_run):
    run = make_run([[verdict(i) for i in range(60)]], gate=CENSUS | {"mode": "calibrated"})
    in_force(run, threshold=0.6)
    sample(run, TASK)
    texts = list(run.store.read_rows(run.sampled(TASK), SampledText))
    rows = [judged(row, True, score=0.55 if row.text_id == "t00003" else 0.9) for row in texts]
    run.store.write_part(f"{run.judged(TASK)}/part-00000.parquet", JudgeScore, rows)
    assert decide(run, TASK)["failed_text_ids"] == ["t00003"]
    withheld = list(run.store.read_rows(run.quarantine(TASK, "judge"), QuarantinedRow))
    assert [(row.listing_id, row.reason) for row in withheld] == [("L00003", "judge_failed")]
    assert "0.55 is below the calibrated threshold" in withheld[0].detail


def test_many_slightly_worse_nights_raise_the_drift_alarm_and_are_plotted(make_run, monkeypatch):
    plotted = []
    monkeypatch.setattr(drift, "nights_plot", lambda nights, *_: plotted.append(nights) or b"")
    run = make_run(
        [[verdict(i) for i in range(400)]],
        gate={"baseline": 0.9, "margin": 0.1},
        sampling={"min_size": 400, "max_size": 400},
    )
    judge(run, lambda t: int(t[1:]) % 20 > 2)  # 85%: between floor and baseline
    manifests = []
    for day in range(1, 29):
        spec = run.spec.model_copy(update={"partition_date": run.spec.partition_date.replace(day=day)})
        manifests.append(decide(Run(spec, run.store), TASK))
        if manifests[-1]["drift"]["alarm"]:
            break
    assert {manifest["status"] for manifest in manifests} == {"passed"}
    assert not manifests[0]["drift"]["alarm"]
    assert manifests[-1]["drift"]["alarm"]
    assert "below the baseline" in manifests[-1]["drift"]["reason"]
    assert [night.get("alarm", False) for night in plotted[-1]] == [False] * (len(plotted) - 1) + [True]
    spec = spec.model_copy(update={"partition_date": spec.partition_date.replace(month=4)})
    gate = spec.settings.task(TASK).gate.model_copy(update={"margin": 0.12})
    task = spec.settings.task(TASK).model_copy(update={"gate": gate})
    settings = spec.settings.model_copy(update={"tasks": spec.settings.tasks | {TASK: task}})
    again = decide(Run(spec.model_copy(update={"settings": settings}), run.store), TASK)
    assert (again["drift"]["nights"], again["drift"]["alarm"]) == (1, False), "another gate starts the evidence anew"
