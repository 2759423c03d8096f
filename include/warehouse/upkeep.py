"""What people do to the warehouse: pin copy of their own, and clear out what is old."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from include.partitions import Store
from include.warehouse.database import connect, retried, writing
from include.warehouse.publish import archive, lock_task
from include.warehouse.schema import copy_history, leases, listing_copy, quarantine, runs
from include.warehouse.staging import staging_tables


class PinError(ValueError):
    """There is no live copy to pin."""


def pin(
    merchant_id: str, listing_id: str, task: str, *, warehouse_url: str, text: str | None = None, on: bool = True
) -> None:
    """Pins live copy, with a person's own `text` if given, so that no run overwrites or retires it; `on=False` unpins.

    Raises PinError when the listing has no live copy for this enhancement task.
    """
    this = sa.and_(
        listing_copy.c.merchant_id == merchant_id,
        listing_copy.c.listing_id == listing_id,
        listing_copy.c.enhancement_task == task,
        listing_copy.c.retired_at.is_(None),
        listing_copy.c.text.is_not(None),
    )

    def transaction() -> None:
        now = datetime.now(UTC)
        with writing(warehouse_url) as connection:
            lock_task(connection, task)
            values: dict[str, Any] = {"pinned": on}
            if text is not None:
                archive(connection, listing_copy, this, ended_at=now, ended_by="person", end_reason="replaced")
                values |= {"text": text, "run_id": "person", "published_at": now, "judge_score": None}
            if not connection.execute(listing_copy.update().where(this).values(**values)).rowcount:
                raise PinError(f"no live {task} of listing {listing_id!r} of merchant {merchant_id!r} to pin")

    retried(transaction)


def clean_warehouse(days: int, *, warehouse_url: str) -> dict[str, int]:
    """Deletes history that ended, and quarantine and runs that are, more than `days` ago, and orphaned staging tables.

    A listing whose quarantine row goes is tried again when it is next read. Staging tables are left alone while any run holds
    a lease, since one of them may be in use.
    """
    before = datetime.now(UTC) - timedelta(days=days)

    def transaction() -> dict[str, int]:
        with writing(warehouse_url) as connection:
            return {
                "copy_history": connection.execute(
                    copy_history.delete().where(copy_history.c.ended_at < before)
                ).rowcount,
                "quarantine": connection.execute(
                    quarantine.delete().where(quarantine.c.quarantined_at < before)
                ).rowcount,
                "runs": connection.execute(
                    runs.delete().where(
                        runs.c.loaded_at < before,
                        # The newest complete run of a scope is where the next windowed read starts.
                        runs.c.complete_until.is_(None) | (runs.c.complete_until < before),
                    )
                ).rowcount,
            }

    return retried(transaction) | {"staging_tables": _drop_orphans(warehouse_url)}


def _drop_orphans(url: str) -> int:
    """Staging tables while no run holds a lease: nobody is between its extraction and its reconciliation then."""
    with connect(url) as connection, connection.begin():
        held = connection.scalar(
            sa.select(sa.func.count()).select_from(leases).where(leases.c.expires_at > datetime.now(UTC))
        )
    if held:
        return 0
    names = staging_tables(url)
    for name in names:
        with writing(url) as connection:
            sa.Table(name, sa.MetaData()).drop(connection, checkfirst=True)
    return len(names)


def clean_parts(data_url: str, days: int, today: date) -> list[str]:
    """Removes the run folders (parts, quarantine, reports, Data Docs) of partition dates more than `days` ago."""
    store = Store(data_url)
    removed: list[str] = []
    if not store.fs.exists(store.root):
        return removed
    for entry in sorted(store.fs.ls(store.root, detail=False)):
        name = entry.rstrip("/").rsplit("/", 1)[-1]
        try:
            day = date.fromisoformat(name.removeprefix("dt="))
        except ValueError:
            continue  # not one of ours
        if name.startswith("dt=") and day < today - timedelta(days=days):
            store.remove(name)
            removed.append(name)
    return removed
