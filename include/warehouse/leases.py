"""A lease on (partition date, enhancement task): at most one run works on it, and a dead run's lease runs out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import sqlalchemy as sa

from include.runs import Run
from include.warehouse.database import retried, writing
from include.warehouse.schema import leases


class LeaseHeldError(RuntimeError):
    """Another run works on the same partition date and enhancement task."""


def acquire(run: Run, *, warehouse_url: str) -> None:
    """Takes or renews the leases of all the run's enhancement tasks, or none of them.

    Raises LeaseHeldError naming the holder.
    """
    spec = run.spec
    now = datetime.now(UTC)
    until = now + timedelta(minutes=spec.settings.pipeline.lease_minutes)

    def take() -> None:
        with writing(warehouse_url) as connection:
            for task in sorted(spec.enhancement_tasks):
                key = sa.and_(leases.c.partition_date == spec.partition_date, leases.c.enhancement_task == task)
                values = {"holder": spec.run_id, "acquired_at": now, "expires_at": until}
                free = sa.or_(leases.c.holder == spec.run_id, leases.c.expires_at <= now)
                if connection.execute(leases.update().where(key, free).values(values)).rowcount:
                    continue
                held = connection.execute(sa.select(leases.c.holder, leases.c.expires_at).where(key)).first()
                if held is None:
                    connection.execute(
                        leases.insert().values(partition_date=spec.partition_date, enhancement_task=task, **values)
                    )
                else:
                    raise LeaseHeldError(
                        f"run {held.holder} works on {task} of {spec.partition_date} (lease until "
                        f"{held.expires_at.isoformat(timespec='seconds')}); wait for it, or if it is dead run "
                        f"`python -m include.warehouse release --date {spec.partition_date} --task {task}`"
                    )

    try:
        retried(take)
    except sa.exc.IntegrityError:  # two runs inserted the same lease at once: look again who won
        retried(take)


def release(run: Run, task: str, *, warehouse_url: str) -> bool:
    """Gives up the run's lease on one enhancement task; returns whether it was held."""
    key = sa.and_(leases.c.partition_date == run.spec.partition_date, leases.c.enhancement_task == task)
    return _delete(warehouse_url, sa.and_(key, leases.c.holder == run.spec.run_id))


def release_any(partition_date: object, task: str, *, warehouse_url: str) -> bool:
    """Removes a lease whoever holds it, for a person who knows that the holder is dead."""
    key = sa.and_(leases.c.partition_date == partition_date, leases.c.enhancement_task == task)
    return _delete(warehouse_url, key)


def _delete(warehouse_url: str, condition: sa.ColumnElement[bool]) -> bool:
    def delete() -> bool:
        with writing(warehouse_url) as connection:
            return connection.execute(leases.delete().where(condition)).rowcount > 0

    return retried(delete)
