"""The publishing transaction's statements, the same on PostgreSQL and SQLite.

The order is archive, write, end, quarantine, record: history gets a version before it is replaced, and readers see all of
it or nothing. A row's version is (when the merchant changed it, when its run read it); an older one never replaces a newer
one, nor a person's copy, nor revives a listing that was withdrawn at a later date.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from include.runs import Run
from include.warehouse.schema import HOLDOUT, KEY, REVERTED, TREATMENT, copy_history, listing_copy, quarantine
from include.warehouse.staging import LISTING, Staging

COPY_NAMES = [c.name for c in copy_history.c if c.name not in ("ended_at", "ended_by", "end_reason")]
LIVE = sa.and_(listing_copy.c.retired_at.is_(None), listing_copy.c.arm == TREATMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What all rows of one load share."""

    run_id: str
    enhancement_task: str
    template_version: str
    extracted_at: datetime
    as_of: datetime  # the end of the run's interval


def provenance(run: Run, task: str) -> Provenance:
    """What all rows of this load share. Raises FileNotFoundError when the extraction has not finished."""
    settings = run.spec.settings.task(task)
    extracted = run.store.read_json(run.manifest(task, "extract"))
    if extracted is None:
        raise FileNotFoundError(f"{run.store.url} has no extract manifest for {task}: run the extraction stage first")
    return Provenance(
        run_id=run.spec.run_id,
        enhancement_task=task,
        template_version=settings.template_version,
        extracted_at=datetime.fromisoformat(extracted["extracted_at"]),
        as_of=run.spec.interval_end,
    )


def lock_task(connection: sa.Connection, task: str) -> None:
    """One publisher per enhancement task at a time. SQLite has one writer anyhow; its lock was taken at the start."""
    if connection.dialect.name == "postgresql":
        connection.execute(
            sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"listing_copy/{task}", 0)))
        )


def insert_for(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT with the dialect's ON CONFLICT."""
    return (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table)


def touched(connection: sa.Connection, statement: sa.Executable) -> int:
    """Runs a statement and returns the rows it touched; not every driver tells them of an INSERT unless asked."""
    return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount


def same_listing(table: sa.Table, staged: sa.FromClause, task: str | sa.BindParameter[Any]) -> sa.ColumnElement[bool]:
    return sa.and_(*(table.c[name] == staged.c[name] for name in LISTING), table.c.enhancement_task == task)


def _may_replace(source_updated_at: Any, facts: Provenance) -> sa.ColumnElement[bool]:
    """The version guard, over the standing row `listing_copy`."""
    old = listing_copy.c
    version = sa.tuple_(source_updated_at, sa.literal(facts.extracted_at, old.extracted_at.type))
    return sa.and_(
        sa.not_(old.pinned),
        version >= sa.tuple_(old.source_updated_at, old.extracted_at),
        sa.or_(old.retired_at.is_(None), old.retired_at < facts.as_of),
    )


def _differs(run_id: Any, text: Any, facts: Provenance) -> sa.ColumnElement[bool]:
    """False for a row that an earlier attempt of the same load has written already."""
    old = listing_copy.c
    return sa.or_(old.run_id != run_id, old.extracted_at != facts.extracted_at, old.text.is_distinct_from(text))


def archive(
    connection: sa.Connection,
    source: sa.FromClause,
    condition: sa.ColumnElement[bool],
    *,
    ended_at: datetime,
    ended_by: str,
    end_reason: str,
) -> int:
    """Copies the live versions that are about to end into the history. Returns how many."""
    ended = {"ended_at": ended_at, "ended_by": ended_by, "end_reason": end_reason}
    values = [sa.literal(value, copy_history.c[name].type) for name, value in ended.items()]
    chosen = sa.select(*(listing_copy.c[name] for name in COPY_NAMES), *values).select_from(source)
    insert = copy_history.insert().from_select([*COPY_NAMES, *ended], chosen.where(LIVE, condition))
    return touched(connection, insert)


def write_copy(connection: sa.Connection, staging: Staging, facts: Provenance, now: datetime) -> int:
    """Archives what is replaced, then inserts or updates in key order. Returns the rows written."""
    new = staging.table
    replaced = sa.and_(_may_replace(new.c.source_updated_at, facts), _differs(new.c.run_id, new.c.text, facts))
    pairs = listing_copy.join(new, same_listing(listing_copy, new, facts.enhancement_task))
    archive(connection, pairs, replaced, ended_at=now, ended_by=facts.run_id, end_reason="replaced")
    constants = {
        "enhancement_task": facts.enhancement_task,
        "arm": TREATMENT,
        "template_version": facts.template_version,
        "extracted_at": facts.extracted_at,
        "published_at": now,
    }
    return _upsert(connection, staging, constants, facts, where=sa.true())


def _upsert(
    connection: sa.Connection,
    staging: Staging,
    constants: dict[str, Any],
    facts: Provenance,
    where: sa.ColumnElement[bool],
) -> int:
    """Updates the listings that stand in the table, then inserts the others; each in key order. Returns the rows written.

    The others need no ON CONFLICT, which costs half as much again: the lock of the enhancement task is held.
    """
    staged = [name for name in (*LISTING, *staging.columns) if name in listing_copy.c and name not in constants]
    literals = [sa.literal(value, listing_copy.c[name].type) for name, value in constants.items()]

    def chosen(source: sa.FromClause, stands: bool) -> sa.Select[Any]:
        pair = sa.exists(
            sa.select(sa.literal(1)).where(same_listing(listing_copy, source, facts.enhancement_task)).correlate(source)
        )
        return (
            sa.select(*(source.c[name] for name in staged), *literals)
            .where(pair if stands else sa.not_(pair))
            .order_by(*(source.c[name] for name in LISTING))
        )

    rows = sa.select(*(staging.table.c[name] for name in staged)).where(where)
    update = insert_for(connection, listing_copy).from_select(
        [*staged, *constants], chosen(rows.subquery(), stands=True)
    )
    new = update.excluded
    changed = {name: new[name] for name in (*staged, *constants) if name not in KEY}
    update = update.on_conflict_do_update(
        index_elements=[listing_copy.c[name] for name in KEY],
        set_=changed | {"retired_at": None},
        where=sa.and_(_may_replace(new.source_updated_at, facts), _differs(new.run_id, new.text, facts)),
    )
    # OFFSET 0 makes PostgreSQL sort whole rows: it takes their index for an order at no cost, but every row of a table larger
    # than its cache is then fetched by itself.
    new_rows = chosen(rows.offset(0).subquery(), stands=False)
    insert = listing_copy.insert().from_select([*staged, *constants], new_rows)
    return touched(connection, update) + touched(connection, insert)


def end_copy(connection: sa.Connection, staging: Staging, facts: Provenance, now: datetime) -> dict[str, int]:
    """Retires the copy of withdrawn listings and moves listings into the holdout arm. Returns the ended copies by reason."""
    if not staging.rows:
        return {"retired": 0, "holdout": 0}
    ended = staging.table
    pairs = listing_copy.join(ended, same_listing(listing_copy, ended, facts.enhancement_task))
    may_end = _may_replace(ended.c.source_updated_at, facts)
    counts = {}
    for reason in ("retired", "holdout"):
        chosen = sa.and_(may_end, ended.c.reason == reason)
        counts[reason] = archive(connection, pairs, chosen, ended_at=now, ended_by=facts.run_id, end_reason=reason)
    withdrawn = sa.select(ended.c.listing_id).where(
        same_listing(listing_copy, ended, facts.enhancement_task), may_end, ended.c.reason == "retired"
    )
    connection.execute(
        listing_copy.update().where(LIVE, sa.exists(withdrawn.correlate(listing_copy))).values(retired_at=facts.as_of)
    )
    empty = dict.fromkeys(
        ("model", "engine_profile", "template_version", "text_id", "content_hash", "staleness_key"), ""
    )
    constants = empty | {
        "text": None,
        "judge_score": None,
        "enhancement_task": facts.enhancement_task,
        "arm": HOLDOUT,
        "run_id": facts.run_id,
        "extracted_at": facts.extracted_at,
        "published_at": now,
    }
    _upsert(connection, staging, constants, facts, where=ended.c.reason == "holdout")
    return counts


def write_quarantine(
    connection: sa.Connection, refused: Staging, published: Staging, facts: Provenance, now: datetime
) -> int:
    """Records the refused listings, and forgets earlier refusals of listings whose copy this run published."""
    names = [*LISTING, *refused.columns]
    # A refused twin of a listing that was published is counted, but the listing is not in quarantine.
    its_copy = sa.select(listing_copy.c.listing_id).where(
        same_listing(listing_copy, refused.table, facts.enhancement_task), listing_copy.c.run_id == facts.run_id
    )
    constants = {"enhancement_task": facts.enhancement_task, "run_id": facts.run_id, "quarantined_at": now}
    chosen = (
        sa.select(
            *(refused.table.c[name] for name in names),
            *(sa.literal(value, quarantine.c[name].type) for name, value in constants.items()),
        )
        .where(sa.not_(sa.exists(its_copy.correlate(refused.table))))
        .order_by(*(refused.table.c[name] for name in LISTING))
    )
    insert = insert_for(connection, quarantine).from_select([*names, *constants], chosen)
    changed = {name: insert.excluded[name] for name in (*names, *constants) if name not in KEY}
    written = touched(
        connection, insert.on_conflict_do_update(index_elements=[quarantine.c[name] for name in KEY], set_=changed)
    )
    staged = sa.exists(
        sa.select(published.table.c.listing_id)
        .where(same_listing(quarantine, published.table, facts.enhancement_task))
        .correlate(quarantine)
    )
    now_live = sa.exists(
        sa.select(listing_copy.c.listing_id)
        .where(*(listing_copy.c[name] == quarantine.c[name] for name in KEY), listing_copy.c.run_id == facts.run_id)
        .correlate(quarantine)
    )
    connection.execute(
        quarantine.delete().where(quarantine.c.enhancement_task == facts.enhancement_task, staged, now_live)
    )
    return written


def note_hashes(connection: sa.Connection, same: Staging, facts: Provenance) -> None:
    """Copy that is still current takes the hash of the row that it was found current for."""
    if same.rows:
        new = same.table.c
        old, pairs = listing_copy.c, same_listing(listing_copy, same.table, facts.enhancement_task)
        current = sa.and_(LIVE, old.staleness_key == new.staleness_key, old.source_hash != new.source_hash)
        connection.execute(listing_copy.update().where(pairs, current).values(source_hash=new.source_hash))


def count_loaded(connection: sa.Connection, staging: Staging, facts: Provenance) -> int:
    """Staged listings whose copy of this run is, or was until a newer run came, in the warehouse."""

    def standing(table: sa.Table, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        return sa.exists(
            sa.select(table.c.listing_id)
            .where(
                same_listing(table, staging.table, facts.enhancement_task),
                table.c.run_id == facts.run_id,
                table.c.extracted_at == facts.extracted_at,
                *conditions,
            )
            .correlate(staging.table)
        )

    chosen = sa.select(sa.func.count()).select_from(staging.table)
    return int(
        connection.scalar(
            chosen.where(sa.or_(standing(listing_copy), standing(copy_history, copy_history.c.end_reason != REVERTED)))
        )
        or 0
    )
