"""A run whose validation is done, written to a temporary folder."""

from datetime import UTC, date, datetime

import pytest

from include.records import JudgeScore, JudgeVerdict, RunCounts, Verdict
from include.runs import Run, RunSpec, interval_of
from include.settings import load_settings

TASK = "title"
# The figures that these tests reckon with, whatever the default configuration says.
UNCALIBRATED_GATE = {"mode": "demo", "baseline": 0.5, "margin": 0.2, "min_validator_pass_rate": 0.5}
UNCALIBRATED_JUDGE = {"calibration": None, "max_calibration_age_days": 180}


def verdict(number, *, ok=True, text_id=None, merchant="m1", category="mugs", locale="en-US", **values):
    return Verdict(
        **{
            "merchant_id": merchant,
            "listing_id": f"L{number:05d}",
            "title": f"Blue mug {number}",
            "description": "A blue mug of 300 ml.",
            "category": category,
            "locale": locale,
            "source_updated_at": datetime(2026, 1, 1, tzinfo=UTC),
            "text_id": text_id or f"t{number:05d}",
            "content_hash": "c",
            "staleness_key": f"s{number}",
            "output": f"Blue mug number {number}",
            "finish_reason": "stop",
            "ok": ok,
            "reasons": () if ok else ("too_long",),
        }
        | values
    )


def judged(row, passed, **values):
    state = passed if isinstance(passed, JudgeVerdict) else JudgeVerdict.PASS if passed else JudgeVerdict.FAIL
    claims = {} if passed is not False else {"unsupported": ("dishwasher safe",)}
    fields = {"text_id": row.text_id, "stratum": row.stratum, "weight": row.weight, "listings": row.listings}
    return JudgeScore(**(fields | {"verdict": state} | claims | values))


@pytest.fixture
def make_run(tmp_path):
    """Writes bins of Verdict rows; None stands for a bin whose validation never finished."""

    def make(bins, *, errored=0, gate=None, sampling=None, judge=None, counts=None):
        settings = load_settings()
        task = settings.task(TASK)
        task = task.model_copy(
            update={
                "gate": task.gate.model_copy(update=UNCALIBRATED_GATE | (gate or {})),
                "sampling": task.sampling.model_copy(update=sampling or {}),
            }
        )
        pipeline = settings.pipeline.model_copy(
            update={"data_url": str(tmp_path / "data"), "state_url": str(tmp_path / "state")}
        )
        settings = settings.model_copy(
            update={
                "tasks": settings.tasks | {TASK: task},
                "pipeline": pipeline,
                "judge": settings.judge.model_copy(update=UNCALIBRATED_JUDGE | (judge or {})),
            }
        )
        day = date(2026, 3, 1)
        start, end = interval_of(day)
        run = Run.create(
            RunSpec(
                run_id="manual__1",
                partition_date=day,
                interval_start=start,
                interval_end=end,
                enhancement_tasks=(TASK,),
                settings=settings,
            )
        )
        rows = [100 if found is None else len(found) + (errored if i == 0 else 0) for i, found in enumerate(bins)]
        plan_counts = RunCounts.from_dict(counts or {})
        plan_counts.extracted += sum(rows)
        plan = {"bins": [[i] for i in range(len(bins))], "rows": rows, "counts": plan_counts.to_dict()}
        run.store.write_json(run.plan(TASK), plan)
        for index, found in enumerate(bins):
            if found is None:
                continue
            if found:
                run.store.write_part(f"{run.verdicts(TASK, index)}/part-00000.parquet", Verdict, found)
            bad = sum(not row.ok for row in found)
            part = RunCounts(accepted=len(found) - bad, errored=errored if index == 0 else 0)
            if bad:
                part.quarantine("too_long", bad)
            run.store.write_json(run.manifest(TASK, "validate", index), {"counts": part.to_dict()})
        return run

    return make
