"""Run folders as a night leaves them, without an engine: for tests of what reads them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from include.partitions import PartWriter
from include.records import QuarantinedRow, RunCounts, Verdict
from include.reporting.summary import summarise
from include.runs import Run, plan_run
from include.settings import load_settings

HOSTILE = "<script>document.title='owned'</script>"


def refusal(number: int, reason: str = "emoji", **changes: Any) -> QuarantinedRow:
    values = {
        "merchant_id": f"m{number % 3}",
        "listing_id": f"L-{number:04d}",
        "staleness_key": "k",
        "stage": "validate",
        "reason": reason,
        "detail": "",
        "output": f"text {number}",
    }
    return QuarantinedRow(**(values | changes))


def verdict(text_id: str, refused: QuarantinedRow | None = None, **changes: Any) -> Verdict:
    """The verdict of a listing that the validators let pass, or that has this refusal."""
    values = {
        "merchant_id": refused.merchant_id if refused else "m9",
        "listing_id": refused.listing_id if refused else f"L-{text_id}",
        "title": f"OLD {text_id} {HOSTILE}",
        "description": "d",
        "source_updated_at": datetime(2026, 3, 1, tzinfo=UTC),
        "text_id": text_id,
        "content_hash": "h",
        "staleness_key": "k",
        "output": refused.output if refused else f"New {text_id}",
        "finish_reason": "stop",
        "ok": refused is None or refused.stage != "validate",
        "reasons": (refused.reason,) if refused and refused.stage == "validate" else (),
    }
    return Verdict(**(values | changes))


def finished_run(
    data_url: Path | str,
    day: date,
    *,
    run_id: str = "",
    tasks: tuple[str, ...] = ("title",),
    refusals: list[QuarantinedRow] | None = None,
    status: str = "passed",
    summary: bool = True,
    rows_per_part: int = 7,
) -> Run:
    """A run of one bin a task whose refusals came half from the validators and half from the judge."""
    settings = load_settings()
    settings = settings.model_copy(
        update={"pipeline": settings.pipeline.model_copy(update={"data_url": str(data_url)})}
    )
    spec = plan_run(
        run_id=run_id or f"scheduled__{day}T00:00:00+00:00",
        params={"partition_date": str(day), "enhancement_tasks": list(tasks)},
        settings=settings,
        logical_date=None,
        run_after=datetime(day.year, day.month, day.day, tzinfo=UTC),
    )
    run = Run.create(spec)
    rows = [refusal(n) for n in range(4)] if refusals is None else refusals
    rows = [replace(row, stage="validate" if n < len(rows) // 2 else "judge") for n, row in enumerate(rows)]
    reasons: dict[str, int] = {}
    for row in rows:
        reasons[row.reason] = reasons.get(row.reason, 0) + 1
    counts = RunCounts(extracted=len(rows) + 20, accepted=20, quarantined=reasons)
    for task in tasks:
        for stage in ("validate", "judge"):
            with PartWriter(run.store, run.quarantine(task, stage), QuarantinedRow, rows_per_part) as writer:
                for row in rows:
                    if row.stage == stage:
                        writer.write(row)
        with PartWriter(run.store, run.verdicts(task, 0), Verdict) as verdicts:
            for row in (*(verdict(f"r{n}", row) for n, row in enumerate(rows)), *(verdict(f"a{n}") for n in range(20))):
                verdicts.write(row)
        validated = RunCounts(extracted=counts.extracted, accepted=counts.extracted)
        for row in rows:
            if row.stage == "validate":
                validated.accepted -= 1
                validated.quarantine(row.reason)
        run.store.write_json(run.manifest(task, "validate", 0), {"counts": validated.to_dict()})
        plan = {"bins": [[0]], "rows": [counts.extracted], "counts": {"extracted": counts.extracted}}
        run.store.write_json(run.plan(task), plan)
        run.store.write_json(run.manifest(task, "extract"), {"counts": {"extracted": counts.extracted}})
        run.store.write_json(run.manifest(task, "generate", 0), {"requests": 30, "busy_s": 12.0, "output_tokens": 900})
        run.store.write_json(
            run.manifest(task, "gate"),
            {
                "status": status,
                "mode": "calibrated",
                "baseline": 0.8,
                "margin": 0.05,
                "reasons": [],
                "suite": {
                    "status": "passed",
                    "expectations": [],
                    "aggregate": {"accepted": 30, "emoji": 10, "errored": 5},
                },
                "judge": {
                    "sampled": 9,
                    "evaluable": 8,
                    "passed": 7,
                    "errors": 1,
                    "pass_rate": 0.875,
                    "ci95": [0.53, 0.98],
                },
                "counts": counts.to_dict(),
            },
        )
        if status == "passed":
            run.store.write_json(run.manifest(task, "load"), {"loaded": 19, "stale": 1})
            run.store.write_json(run.manifest(task, "reconcile"), {"status": "published"})
    if summary:
        run.store.write_json("summary.json", summarise(run))
    return run
