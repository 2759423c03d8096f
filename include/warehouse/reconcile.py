"""Reading back what a load committed. Only equal counts make a run `published`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from include.records import AccountingError
from include.runs import Run
from include.warehouse.database import connect, retried, writing
from include.warehouse.leases import release
from include.warehouse.publish import Provenance, provenance
from include.warehouse.schema import REVERTED, TREATMENT, copy_history, listing_copy, quarantine, runs
from include.warehouse.staging import KINDS, Staging


def read_back(facts: Provenance, url: str) -> tuple[dict[str, int], bool]:
    """Listings whose copy of this run is (or was, until a newer run replaced it) live, and its quarantine rows; and
    whether another run of the enhancement task has loaded since.
    """

    def of_run(table: sa.Table) -> sa.ColumnElement[bool]:
        return sa.and_(
            table.c.run_id == facts.run_id,
            table.c.enhancement_task == facts.enhancement_task,
            table.c.extracted_at == facts.extracted_at,
        )

    old = copy_history
    same = sa.and_(old.c.merchant_id == listing_copy.c.merchant_id, old.c.listing_id == listing_copy.c.listing_id)
    still_there = sa.exists(sa.select(listing_copy.c.listing_id).where(same, of_run(listing_copy)).correlate(old))
    gone = (
        sa.select(old.c.merchant_id, old.c.listing_id)
        .where(of_run(old), old.c.end_reason != REVERTED, sa.not_(still_there))
        .distinct()
        .subquery()
    )
    count = sa.select(sa.func.count())
    loaded_at = sa.select(runs.c.loaded_at).where(
        runs.c.run_id == facts.run_id, runs.c.enhancement_task == facts.enhancement_task
    )
    with connect(url) as connection, connection.begin():
        live = connection.scalar(
            count.select_from(listing_copy).where(of_run(listing_copy), listing_copy.c.arm == TREATMENT)
        )
        replaced = connection.scalar(count.select_from(gone))
        refused = connection.scalar(
            count.select_from(quarantine).where(
                quarantine.c.run_id == facts.run_id,
                quarantine.c.enhancement_task == facts.enhancement_task,
                quarantine.c.quarantined_at == loaded_at.scalar_subquery(),
            )
        )
        later = connection.scalar(
            count.select_from(runs).where(
                runs.c.enhancement_task == facts.enhancement_task, runs.c.loaded_at > loaded_at.scalar_subquery()
            )
        )
    return {"loaded": int(live or 0) + int(replaced or 0), "quarantine_rows": int(refused or 0)}, bool(later)


def reconcile(run: Run, task: str, *, warehouse_url: str) -> dict[str, Any]:
    """Reads the counts back; only when they equal the load's manifest does the run's row go to `published`.

    Then drops the staging tables, releases the lease and writes manifest(task, "reconcile"). Raises AccountingError when
    the counts differ and FileNotFoundError when there was no load.
    """
    manifest = run.store.read_json(run.manifest(task, "load"))
    if manifest is None:
        raise FileNotFoundError(f"{run.store.url} has no load manifest for {task}: run the load stage first")
    facts = provenance(run, task)
    found, later = read_back(facts, warehouse_url)
    expected = {name: manifest[name] for name in found}
    # The history keeps copy that a later run has replaced since; the quarantine keeps the last refusal of a listing only.
    moved_on = later and found["quarantine_rows"] < expected["quarantine_rows"]
    if found["loaded"] != expected["loaded"] or (found != expected and not moved_on):
        raise AccountingError(
            f"{task}: the warehouse holds {found} of run {facts.run_id} but its load committed {expected}; the run is not "
            "marked published. Either its rows were changed in between, or the load must be run again."
        )

    def mark_published() -> None:
        with writing(warehouse_url) as connection:
            connection.execute(
                runs.update()
                .where(
                    runs.c.run_id == facts.run_id,
                    runs.c.enhancement_task == facts.enhancement_task,
                    runs.c.status == "loaded",
                )
                .values(status="published", published_at=datetime.now(UTC))
            )

    retried(mark_published)
    for kind in KINDS:
        Staging(kind, run.spec.run_id, task, warehouse_url).drop()
    release(run, task, warehouse_url=warehouse_url)
    result = {"status": "published", **found}
    run.store.write_json(run.manifest(task, "reconcile"), result)
    return result
