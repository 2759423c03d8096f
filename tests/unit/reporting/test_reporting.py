"""The summary and the alert say what the manifests say."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from include.partitions import Store
from include.records import RunCounts
from include.reporting.__main__ import main
from include.reporting.summary import summarise
from include.reporting.text import alert_subject, alert_text, summary_text
from include.runs import Run, plan_run
from include.settings import load_settings


@pytest.fixture
def run(tmp_path: Path) -> Run:
    settings = load_settings()
    spec = plan_run(
        run_id="manual__1",
        params={"partition_date": "2026-03-01"},
        settings=settings,
        logical_date=None,
        run_after=datetime(2026, 3, 2, tzinfo=UTC),
    )
    store = Store(str(tmp_path))
    store.write_bytes("run.json", spec.model_dump_json().encode())
    return Run(spec, store)


def finish_task(run: Run, task: str, *, status: str = "passed", **gate: Any) -> None:
    counts = RunCounts(extracted=10, unchanged=1, quarantined={"emoji": 2, "judge_failed": 1}, accepted=6)
    counts.check_closed()
    run.store.write_json(run.plan(task), {"bins": [[0]], "rows": [9], "counts": {}})
    run.store.write_json(
        run.manifest(task, "extract"), {"rows": 9, "bins": 1, "counts": {"extracted": 10, "unchanged": 1}}
    )
    run.store.write_json(
        run.manifest(task, "generate", 0),
        {
            "requests": 9,
            "busy_s": 3.0,
            "output_tokens": 90,
            "prompt_tokens": 100,
            "prefix_cache_hit_rate": 0.6,
            "engine_starts": 1,
            "engine_start_s": 12.5,
        },
    )
    run.store.write_json(
        run.manifest(task, "gate"),
        {
            "status": status,
            "mode": "calibrated",
            "baseline": 0.8,
            "margin": 0.05,
            "reasons": gate.pop("reasons", []),
            "judge": {"sampled": 9, "evaluable": 8, "passed": 7, "errors": 1, "pass_rate": 0.875, "ci95": [0.53, 0.98]},
            "counts": counts.to_dict(),
            "failed_text_ids": ["t2"],
            **gate,
        },
    )
    if status == "passed":
        run.store.write_json(run.manifest(task, "load"), {"accepted": 6, "loaded": 6, "stale": 0})
        run.store.write_json(run.manifest(task, "reconcile"), {"status": "published"})


def test_summary_joins_the_stages_figures(run: Run) -> None:
    for task in run.spec.enhancement_tasks:
        finish_task(run, task)
    summary = summarise(run)
    title = summary["tasks"]["title"]
    assert summary["ok"]
    assert title["extracted"] == title["unchanged"] + sum(title["quarantined"].values()) + title["accepted"]
    assert (title["requests_per_s"], title["prefix_cache_hit_rate"], title["engine_starts"]) == (3.0, 0.6, 1)
    assert "87.5%" in summary_text(summary)


def test_a_failed_gate_is_named_with_figures_ids_and_a_next_step(run: Run) -> None:
    finish_task(run, "description")
    finish_task(
        run,
        "title",
        status="failed",
        reasons=["judge pass rate 87.5% is not shown above 75.0%"],
        sample_ids=[f"m1/{n}" for n in range(7)],
        next_step="raise nothing; look at the examples",
    )
    summary = summarise(run)
    gates = {task: run.store.read_json(run.manifest(task, "gate")) for task in summary["tasks"]}
    assert not summary["ok"]
    assert alert_subject(summary) == "Listing enhancement 2026-03-01: title (gate failed)"
    text = alert_text(summary, gates, "http://airflow/run")
    assert "must be shown above 75.0%" in text
    assert "m1/4" in text
    assert "m1/5" not in text
    assert "emoji 2" in text
    assert "look at the examples" in text
    assert "not affected: description" in text


def test_a_load_that_never_happened_fails_the_run_and_says_it_is_safe_to_clear(run: Run) -> None:
    for task in run.spec.enhancement_tasks:
        finish_task(run, task)
    run.store.remove(run.manifest("title", "reconcile"))
    summary = summarise(run)
    assert summary["tasks"]["title"]["outcome"] == "not_reconciled"
    assert "3 listings keep their current copy; published tonight: 6" in alert_text(summary, {}, "")
    assert "the copy is live" in alert_text(summary, {}, "")
    run.store.remove(run.manifest("title", "load"))
    summary = summarise(run)
    assert summary["tasks"]["title"]["outcome"] == "not_loaded"
    assert "clear title.load" in alert_text(summary, {}, "")


def test_a_run_that_stopped_early_says_after_which_stage(run: Run) -> None:
    summary = summarise(run)
    assert summary["tasks"]["title"]["outcome"] == "stopped_after_open"
    assert "no listing was counted yet" in alert_text(summary, {}, "")
    assert "read the log of extract" in alert_text(summary, {}, "")
    assert "stopped_after_open  stopped_after_open" in summary_text(summary)


def test_nothing_to_do_is_a_good_night(run: Run) -> None:
    for task in run.spec.enhancement_tasks:
        run.store.write_json(run.plan(task), {"bins": [], "rows": [], "counts": {}})
        counts = {"extracted": 4, "unchanged": 4}
        run.store.write_json(run.manifest(task, "extract"), {"rows": 0, "bins": 0, "counts": counts})
        run.store.write_json(
            run.manifest(task, "gate"), {"status": "empty", "mode": "demo", "reasons": [], "counts": counts}
        )
    summary = summarise(run)
    assert summary["ok"]
    assert summary["tasks"]["title"]["engine_starts"] == 0
    assert "no engine was started" in summary_text(summary)


def test_the_command_writes_json_and_fails_clearly_without_a_run(run: Run, tmp_path: Path, capsys: Any) -> None:
    for task in run.spec.enhancement_tasks:
        finish_task(run, task)
    out = tmp_path / "out" / "summary.json"
    assert main(["show", "--run-dir", str(tmp_path), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["tasks"]["title"]["loaded"] == 6
    assert main(["show", "--run-dir", str(tmp_path / "none")]) == 2
    assert "run.json is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("param", "logical", "expected_day", "expected_start"),
    [
        ("2026-02-03", datetime(2026, 3, 1, tzinfo=UTC), date(2026, 2, 3), datetime(2026, 2, 3, tzinfo=UTC)),
        (None, datetime(2026, 3, 1, 15, tzinfo=UTC), date(2026, 3, 1), datetime(2026, 3, 1, tzinfo=UTC)),
        (None, None, date(2026, 3, 2), datetime(2026, 3, 2, tzinfo=UTC)),
    ],
)
def test_partition_date_is_the_parameter_then_logical_date_then_run_after(
    param: str | None, logical: datetime | None, expected_day: date, expected_start: datetime
) -> None:
    spec = plan_run(
        run_id="r",
        params={"partition_date": param},
        settings=load_settings(),
        logical_date=logical,
        run_after=datetime(2026, 3, 2, 7, tzinfo=UTC),
    )
    assert (spec.partition_date, spec.interval_start) == (expected_day, expected_start)
    assert (spec.interval_end - spec.interval_start).days == 1
