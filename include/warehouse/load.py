"""Load of one enhancement task's accepted copy: stage, audit, publish in one transaction, then read back.

A crash anywhere leaves the old state or the new one; running it again ends the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from include.records import ESCALATED, AccountingError, JudgeScore, RunCounts
from include.runs import Run
from include.warehouse.bulk import Poisoned
from include.warehouse.database import normalise_url, plan_without, retried, writing
from include.warehouse.migrate import check_schema
from include.warehouse.publish import (
    Provenance,
    count_loaded,
    end_copy,
    insert_for,
    lock_task,
    note_hashes,
    provenance,
    same_listing,
    write_copy,
    write_quarantine,
)
from include.warehouse.reconcile import reconcile
from include.warehouse.revert import undo
from include.warehouse.schema import TREATMENT, listing_copy, runs
from include.warehouse.staging import KINDS, LISTING, Staging

__all__ = ["LoadRefusedError", "load", "reconcile"]

POISONED = "refused_by_database"
_COPY = (
    "merchant_id",
    "listing_id",
    "output",
    "locale",
    "text_id",
    "content_hash",
    "staleness_key",
    "source_hash",
    "source_updated_at",
)
_REFUSED = ("merchant_id", "listing_id", "staleness_key", "stage", "reason", "detail", "output")


class LoadRefusedError(RuntimeError):
    """The gate is not open, or the staging tables are not what was staged and audited: nothing was published."""


def _accepted(run: Run, task: str, failed_text_ids: list[str]) -> Iterator[pa.RecordBatch]:
    """Accepted listings of the finished bins, in the staging table's columns, each with the engine that wrote its copy:
    the bin's own, or the escalation's larger model.
    """
    settings = run.spec.settings
    escalation = settings.task(task).escalation
    scores = {s.text_id: s.score for s in run.store.read_rows(run.judged(task), JudgeScore) if s.score is not None}
    known, values = pa.array(scores.keys(), pa.string()), pa.array(scores.values(), pa.float64())
    failed = pa.array(failed_text_ids, pa.string())
    for bin_index, engine in enumerate(run.engines(task)):
        if not run.store.exists(run.manifest(task, "validate", bin_index)):
            continue  # its listings are `errored`
        for found in run.store.read_batches(run.verdicts(task, bin_index), [*_COPY, "ok", "flags"]):
            kept = found.filter(pc.and_(found["ok"], pc.invert(pc.is_in(found["text_id"], failed))))
            batch = kept.select(_COPY).rename_columns(["text" if name == "output" else name for name in _COPY])
            columns = {
                "judge_score": pc.take(values, pc.index_in(batch["text_id"], known)),
                "model": pa.repeat(settings.engines[engine].model, batch.num_rows),
                "engine_profile": pa.repeat(engine, batch.num_rows),
                "run_id": pa.repeat(run.spec.run_id, batch.num_rows),
            }
            if escalation is not None:
                larger = pa.array([ESCALATED in flags for flags in kept["flags"].to_pylist()], pa.bool_())
                for name, value in (
                    ("model", settings.engines[escalation.engine].model),
                    ("engine_profile", escalation.engine),
                ):
                    columns[name] = pc.if_else(larger, value, columns[name])
            for name, column in columns.items():
                batch = batch.append_column(name, column)
            yield batch


def _refused(run: Run, task: str, poison: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Quarantined listings of every stage. Texts may be anything, so NUL, which no database takes, is made visible."""
    folders = [run.quarantine(task, stage) for stage in ("extract", "judge")]
    folders += [
        run.quarantine(task, stage, i) for i in range(len(run.bins(task))) for stage in ("generate", "validate")
    ]
    for folder in folders:
        for batch in run.store.read_batches(folder, list(_REFUSED)):
            columns = [pc.replace_substring(column, "\0", "\ufffd") for column in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    yield from poison


def _ended(run: Run, task: str) -> Iterator[pa.RecordBatch]:
    names = ["merchant_id", "listing_id", "locale", "source_updated_at", "reason"]
    return run.store.read_batches(f"{run.work(task)}/ended", names)


def _same(run: Run, task: str) -> Iterator[pa.RecordBatch]:
    return run.store.read_batches(
        f"{run.work(task)}/same", ["merchant_id", "listing_id", "staleness_key", "source_hash"]
    )


def _poison_into(poison: list[pa.RecordBatch]) -> Poisoned:
    def add(row: pa.RecordBatch, error: str) -> None:
        values = row.to_pylist()[0]
        poison.append(
            pa.RecordBatch.from_pylist(
                [
                    {
                        **{name: values[name].replace("\0", "\ufffd") for name in (*LISTING, "staleness_key")},
                        "stage": "load",
                        "reason": POISONED,
                        "detail": error,
                        "output": (values["text"] or "").replace("\0", "\ufffd"),
                    }
                ]
            )
        )

    return add


def _refuse(row: pa.RecordBatch, error: str) -> None:
    raise LoadRefusedError(f"the database refuses a quarantine row ({error}): {row.to_pylist()[0]}")


def load(run: Run, task: str, *, warehouse_url: str) -> dict[str, Any]:
    """Publishes the gate's accepted copy and the quarantine, and writes manifest(task, "load").

    Raises LoadRefusedError when the gate is not open or the audit fails, AccountingError when rows are missing,
    UnreachableError or OldSchemaError when the warehouse is not ready; nothing is published then.
    """
    gate = run.store.read_json(run.manifest(task, "gate"))
    if gate is None or gate["status"] not in ("passed", "empty"):
        raise LoadRefusedError(
            f"the gate of {task} is {gate['status'] if gate else 'not decided'}: nothing was loaded; "
            f"see {run.store.path(run.manifest(task, 'gate'))}"
        )
    check_schema(warehouse_url)
    facts, counts = provenance(run, task), RunCounts.from_dict(gate["counts"])
    counts.check_closed()
    staged = {kind: Staging(kind, run.spec.run_id, task, warehouse_url) for kind in KINDS}
    copy = staged["copy"]
    poison: list[pa.RecordBatch] = []

    def stage() -> int:
        poison.clear()
        return copy.fill(lambda: _accepted(run, task, gate["failed_text_ids"]), _poison_into(poison))

    clock = [time.monotonic()]
    twins = retried(stage)
    found = copy.rows + twins + len(poison)
    if found != counts.accepted:
        raise AccountingError(
            f"{task}: the gate accepted {counts.accepted} listings but the verdicts hold {found}; "
            "nothing was published. Clear the run from its gate task."
        )
    counts.accepted -= len(poison)
    if poison:
        counts.quarantine(POISONED, len(poison))
    retried(lambda: staged["quarantine"].fill(lambda: _refused(run, task, poison), _refuse))
    retried(lambda: staged["ended"].fill(lambda: _ended(run, task), _refuse))
    retried(lambda: staged["same"].fill(lambda: _same(run, task), _refuse))
    clock.append(time.monotonic())
    audit = audit_staging(copy, run.spec.run_id, copy.rows, warehouse_url)
    clock.append(time.monotonic())
    result = retried(lambda: _publish(run, task, facts, counts, staged, warehouse_url))
    clock.append(time.monotonic())
    manifest = {
        "accepted": counts.accepted,
        **result,
        "counts": counts.to_dict(),
        "twins": twins,
        "audit": audit,
        "seconds": {
            name: round(end - start, 3)
            for name, start, end in zip(("stage", "audit", "publish"), clock, clock[1:], strict=False)
        },
    }
    run.store.write_json(run.manifest(task, "load"), manifest)
    return manifest


def audit_staging(staging: Staging, run_id: str, rows: int, warehouse_url: str) -> dict[str, Any]:
    """Great Expectations over the staging table, in SQL. Raises LoadRefusedError unless every expectation holds.

    An empty table, which the caller expects to be empty, is not audited: rules about rows would be true of nothing.
    """
    if rows == 0:
        return {"status": "empty", "expectations": []}
    from include.expectations import audit_table

    required = [c for c in (*LISTING, *staging.columns) if c != "judge_score"]
    url = normalise_url(warehouse_url).render_as_string(hide_password=False)
    result = audit_table(
        url, str(staging.table.name), rows=rows, key=LISTING, required=required, constants={"run_id": run_id}
    )
    if result["status"] != "passed":
        failed = [e for e in result["expectations"] if not e["success"]]
        raise LoadRefusedError(f"staging table {staging.table.name} failed its audit, nothing was published: {failed}")
    return result


def _publish(
    run: Run, task: str, facts: Provenance, counts: RunCounts, staged: dict[str, Staging], url: str
) -> dict[str, Any]:
    """The publishing transaction, whole: safe to run again after any error."""
    copy = staged["copy"]
    extracted = run.store.read_json(run.manifest(task, "extract"))
    with writing(url) as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL work_mem = '128MB'")
        plan_without(connection, "hashjoin")  # the others keep the key order that rows are written in
        lock_task(connection, task)
        if any(staging.is_lost(connection) for staging in staged.values()):
            raise LoadRefusedError(
                f"{task}: the staging tables were emptied by a crash of the database; nothing was published: run the load again"
            )
        now = datetime.now(UTC)
        _withdraw_earlier_attempt(connection, copy, facts, now)
        written = write_copy(connection, copy, facts, now)
        # Rows that are stale, or written by an earlier attempt, are not written: only then does it take a look to count.
        loaded = written if written == copy.rows else count_loaded(connection, copy, facts)
        ends = end_copy(connection, staged["ended"], facts, now)
        quarantined = write_quarantine(connection, staged["quarantine"], copy, facts, now)
        note_hashes(connection, staged["same"], facts)
        finished = counts.errored == 0 and extracted.get("complete", False)
        values = {
            "partition_date": run.spec.partition_date,
            "interval_start": run.spec.interval_start,
            "interval_end": run.spec.interval_end,
            "status": "loaded",
            "scope": extracted.get("scope", ""),
            "complete_until": run.spec.interval_end if finished else _time(extracted.get("read_from")),
            "counts": counts.to_dict() | {"loaded": loaded, "stale": counts.accepted - loaded, **ends},
            "extracted_at": facts.extracted_at,
            "loaded_at": now,
        }
        insert = insert_for(connection, runs).values(run_id=facts.run_id, enhancement_task=task, **values)
        connection.execute(insert.on_conflict_do_update(index_elements=list(runs.primary_key), set_=values))
    return {"loaded": loaded, "stale": counts.accepted - loaded, "ended": ends, "quarantine_rows": quarantined}


def _withdraw_earlier_attempt(connection: sa.Connection, copy: Staging, facts: Provenance, now: datetime) -> None:
    """Takes back what this run has published already and its gate no longer accepts, so that a rerun ends the same."""
    this = sa.and_(runs.c.run_id == facts.run_id, runs.c.enhancement_task == facts.enhancement_task)
    if connection.scalar(sa.select(runs.c.run_id).where(this)) is None:
        return
    staged = sa.select(copy.table.c.listing_id).where(same_listing(listing_copy, copy.table, facts.enhancement_task))
    conditions = (
        listing_copy.c.extracted_at == facts.extracted_at,
        listing_copy.c.arm == TREATMENT,
        sa.not_(sa.exists(staged.correlate(listing_copy))),
    )
    undo(connection, facts.run_id, facts.enhancement_task, *conditions, ended_by=facts.run_id, now=now)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
