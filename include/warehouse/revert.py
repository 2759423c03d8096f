"""Taking a run's copy back: each listing gets the version that the run replaced, or none if there was none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from include.warehouse.database import retried, writing
from include.warehouse.publish import COPY_NAMES, archive, insert_for, lock_task, touched
from include.warehouse.schema import KEY, REVERTED, TREATMENT, copy_history, listing_copy, quarantine, runs


class RevertError(ValueError):
    """There is no such run to revert."""


def _same_key(one: sa.FromClause, other: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(*(one.c[name] == other.c[name] for name in KEY))


def undo(
    connection: sa.Connection, run_id: str, task: str, *conditions: sa.ColumnElement[bool], ended_by: str, now: datetime
) -> dict[str, int]:
    """Ends the run's versions that meet `conditions` and brings back what they replaced.

    Returns the listings `restored` to an earlier version and those `removed` for lack of one.
    """
    own = sa.and_(
        listing_copy.c.run_id == run_id,
        listing_copy.c.enhancement_task == task,
        listing_copy.c.retired_at.is_(None),
        *conditions,
    )
    archive(connection, listing_copy, own, ended_at=now, ended_by=ended_by, end_reason=REVERTED)
    still_own = sa.exists(
        sa.select(sa.literal(1)).where(_same_key(listing_copy, copy_history), own).correlate(copy_history)
    )
    newest_first = sa.func.row_number().over(
        partition_by=[copy_history.c[name] for name in KEY], order_by=copy_history.c.published_at.desc()
    )
    ended = (
        sa.select(copy_history, newest_first.label("n"))
        .where(copy_history.c.ended_by == run_id, copy_history.c.run_id != run_id, still_own)
        .subquery()
    )
    names = [name for name in COPY_NAMES if name != "published_at"]
    moment = sa.literal(now, listing_copy.c.published_at.type)
    previous = sa.select(*(ended.c[name] for name in names), moment).where(ended.c.n == 1)
    insert = insert_for(connection, listing_copy).from_select(
        [*names, "published_at"], previous.order_by(*(ended.c[name] for name in KEY))
    )
    changed = {name: insert.excluded[name] for name in COPY_NAMES if name not in KEY}
    changed |= {"retired_at": None, "source_hash": ""}
    restored = touched(
        connection, insert.on_conflict_do_update(index_elements=[listing_copy.c[name] for name in KEY], set_=changed)
    )
    return {"restored": restored, "removed": touched(connection, listing_copy.delete().where(own))}


def _bring_back_retired(connection: sa.Connection, run_id: str, task: str, as_of: datetime, now: datetime) -> int:
    """Copy that the run retired is live again, from now on."""
    retired = sa.select(sa.literal(1)).where(
        _same_key(copy_history, listing_copy), copy_history.c.ended_by == run_id, copy_history.c.end_reason == "retired"
    )
    return touched(
        connection,
        listing_copy.update()
        .where(
            listing_copy.c.enhancement_task == task,
            listing_copy.c.retired_at == as_of,
            sa.exists(retired.correlate(listing_copy)),
        )
        .values(retired_at=None, published_at=now),
    )


def _never_again(connection: sa.Connection, run_id: str, task: str, now: datetime) -> None:
    """Quarantines what is about to be reverted, so that the next run does not write the same texts again."""
    constants = {"stage": "warehouse", "reason": REVERTED, "detail": f"run {run_id}", "run_id": run_id}
    names = [*KEY, "staleness_key"]
    chosen = (
        sa.select(
            *(listing_copy.c[name] for name in names),
            sa.func.coalesce(listing_copy.c.text, ""),
            *(sa.literal(value, quarantine.c[name].type) for name, value in constants.items()),
            sa.literal(now, quarantine.c.quarantined_at.type),
        )
        .where(
            listing_copy.c.run_id == run_id,
            listing_copy.c.enhancement_task == task,
            listing_copy.c.arm == TREATMENT,
            listing_copy.c.retired_at.is_(None),
        )
        .order_by(*(listing_copy.c[name] for name in KEY))
    )
    columns = [*names, "output", *constants, "quarantined_at"]
    insert = insert_for(connection, quarantine).from_select(columns, chosen)
    changed = {name: insert.excluded[name] for name in columns if name not in KEY}
    connection.execute(insert.on_conflict_do_update(index_elements=[quarantine.c[name] for name in KEY], set_=changed))


def revert(run_id: str, task: str, *, warehouse_url: str) -> dict[str, Any]:
    """Takes back one run's copy of one enhancement task, in one transaction; doing it again changes nothing.

    Listings that a newer run has replaced since stay as they are. What is reverted is not written again until its
    staleness key changes (other content, template or model). Raises RevertError for an unknown run.
    """

    def transaction() -> dict[str, Any]:
        with writing(warehouse_url) as connection:
            lock_task(connection, task)
            this = sa.and_(runs.c.run_id == run_id, runs.c.enhancement_task == task)
            found = connection.execute(sa.select(runs.c.status, runs.c.interval_end).where(this)).first()
            if found is None:
                known = connection.scalars(
                    sa.select(runs.c.run_id)
                    .where(runs.c.enhancement_task == task)
                    .order_by(runs.c.loaded_at.desc())
                    .limit(5)
                )
                raise RevertError(f"no run {run_id!r} has loaded {task}; the last ones are {list(known)}")
            now = datetime.now(UTC)
            _never_again(connection, run_id, task, now)
            counts = undo(connection, run_id, task, ended_by=f"revert of {run_id}", now=now)
            counts["unretired"] = _bring_back_retired(connection, run_id, task, found.interval_end, now)
            connection.execute(runs.update().where(this).values(status=REVERTED))
        return {"run_id": run_id, "task": task, "status": REVERTED, **counts}

    return retried(transaction)
