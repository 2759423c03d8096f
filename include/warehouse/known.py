"""What the warehouse knows of a batch of listings: an anti-join through a temporary table, never through an id list."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from include.warehouse.bulk import insert_batch
from include.warehouse.database import connect, plan_without
from include.warehouse.publish import LIVE, same_listing
from include.warehouse.schema import HOLDOUT, key_text, listing_copy, quarantine, runs


class Standing(StrEnum):
    """How one (listing, enhancement task) stands in the warehouse, as far as the extraction must know."""

    NEW = "new"  # nothing, or something under another staleness key
    CURRENT = "current"  # live copy under the same staleness key
    QUARANTINED = "quarantined"  # refused before under the same staleness key
    PINNED = "pinned"  # a person's copy
    HOLDOUT = "holdout"  # recorded in the holdout arm


_BY_VALUE = {standing.value: standing for standing in Standing}
_keys = sa.Table(
    "keys_to_look_up",
    sa.MetaData(),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("merchant_id", key_text(), nullable=False),
    sa.Column("listing_id", key_text(), nullable=False),
    sa.Column("mark", sa.Text, nullable=False),  # a staleness key or a source hash
    prefixes=["TEMPORARY"],
    postgresql_on_commit="DELETE ROWS",  # a truncation: deleted rows of a temporary table are never vacuumed
)
_SCHEMA = pa.schema(
    [("n", pa.int32()), *[(c.name, pa.string()) for c in _keys.c if c.name != "n"]],
)

Key = tuple[str, str, str]  # merchant_id, listing_id, and the staleness key or source hash


def _same_key(table: sa.Table) -> sa.ColumnElement[bool]:
    return same_listing(table, _keys, sa.bindparam("task"))


def _unknown() -> sa.Select[int]:
    known = sa.exists(
        sa.select(sa.literal(1))
        .where(
            _same_key(listing_copy), LIVE, sa.not_(listing_copy.c.pinned), listing_copy.c.source_hash == _keys.c.mark
        )
        .correlate(_keys)
    )
    return sa.select(_keys.c.n).where(sa.not_(known))


def _lookup() -> sa.Select[int, str]:
    copy, refused = listing_copy, quarantine
    standing = sa.case(
        (copy.c.pinned, Standing.PINNED.value),
        (sa.and_(LIVE, copy.c.staleness_key == _keys.c.mark), Standing.CURRENT.value),
        (copy.c.arm == HOLDOUT, Standing.HOLDOUT.value),
        (refused.c.staleness_key == _keys.c.mark, Standing.QUARANTINED.value),
        else_=Standing.NEW.value,
    )
    joined = _keys.outerjoin(copy, _same_key(copy)).outerjoin(refused, _same_key(refused))
    found = sa.select(_keys.c.n, standing.label("standing")).select_from(joined).subquery()
    return sa.select(found.c.n, found.c.standing).where(found.c.standing != Standing.NEW.value)


def complete_until(url: str, task: str, scope: str) -> datetime | None:
    """The moment before which published runs of this scope left no change undone; None when it is not known.

    Runs that read before one of another scope was loaded say nothing: it may have written anew what they left as it is.
    """
    others = runs.alias()
    last_other = (
        sa.select(sa.func.max(others.c.loaded_at, type_=others.c.loaded_at.type))
        .where(others.c.enhancement_task == task, others.c.scope != scope)
        .scalar_subquery()
    )
    query = sa.select(sa.func.max(runs.c.complete_until, type_=runs.c.complete_until.type)).where(
        runs.c.enhancement_task == task,
        runs.c.scope == scope,
        runs.c.status == "published",
        sa.or_(last_other.is_(None), runs.c.extracted_at > last_other),
    )
    with connect(url) as connection, connection.begin():
        found: datetime | None = connection.scalar(query)
    return found


class Lookup:
    """A connection with its temporary table. Use as a context manager; each question is one short transaction."""

    def __init__(self, url: str) -> None:
        self._opened = connect(url)
        self._connection = self._opened.__enter__()
        with self._connection.begin():
            _keys.create(self._connection)
            self.empty = self._connection.execute(sa.select(listing_copy.c.listing_id).limit(1)).first() is None
        self._lookup, self._unknown = _lookup(), _unknown()

    def __enter__(self) -> Lookup:
        return self

    def __exit__(self, *error: object) -> None:
        with self._connection.begin():
            _keys.drop(self._connection)
        self._opened.__exit__(None, None, None)

    def standings(self, task: str, keys: Sequence[Key]) -> list[Standing]:
        """The standing of each key under its staleness key, in order."""
        found = [Standing.NEW] * len(keys)
        for n, standing in self._ask(self._lookup, task, keys):
            found[n] = _BY_VALUE[standing]
        return found

    def unknown(self, task: str, keys: Sequence[Key]) -> set[int]:
        """Places of the keys that have no current, unpinned copy of the same source hash."""
        return {n for (n,) in self._ask(self._unknown, task, keys)}

    def _ask(self, question: sa.Executable, task: str, keys: Sequence[Key]) -> Sequence[Any]:
        if not keys:
            return []
        columns = [pa.array(range(len(keys)), pa.int32())]
        columns += [pa.array([key[i] for key in keys], pa.string()) for i in range(3)]
        with self._connection.begin():
            self._connection.execute(_keys.delete())
            plan_without(self._connection, "hashjoin", "mergejoin", "material")
            insert_batch(self._connection, _keys, pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
            return self._connection.execute(question, {"task": task}).all()
