"""The gate's decision, its closed accounting and what it hands to alert and load."""

import pytest

from include.judging import gate as gate_module
from include.judging.gate import decide
from include.judging.stage import sample
from include.records import JudgeScore, JudgeVerdict, QuarantinedRow, RunCounts, SampledText
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
