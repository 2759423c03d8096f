"""The keys that a run's read has seen: which came twice, and which live copy no listing stands behind any more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import sqlalchemy as sa

from include.settings import digest
from include.warehouse.bulk import insert_batch
from include.warehouse.database import connect, retried, writing
from include.warehouse.publish import insert_for
from include.warehouse.schema import TREATMENT, key_text, listing_copy

_KEY = ("merchant_id", "listing_id")
MIN_LIVE = 20  # merchants with less copy may lose all of it
_FIRST = {"merchant_id": "", "listing_id": ""}  # no listing's key: it goes when a crash empties the unlogged table


class SeenLostError(RuntimeError):
    """What the read has seen is lost, so nobody knows which listings were withdrawn."""


class SeenListings:
    """A table of the keys that one run's read has seen; every reader of the run adds to it.

    `unique` is for sources whose keys may come twice: the table then keeps each once and tells which were new.
    """

    def __init__(self, url: str, run_id: str, *, unique: bool) -> None:
        self.url, self.unique = url, unique
        self._table = sa.Table(
            f"staging_seen_{digest(run_id)}",
            sa.MetaData(),
            sa.Column("merchant_id", key_text(), primary_key=unique, nullable=False),
            sa.Column("listing_id", key_text(), primary_key=unique, nullable=False),
        )
        self._batch = sa.Table(
            "listings_of_batch",
            sa.MetaData(),
            *(sa.Column(name, key_text(), nullable=False) for name in _KEY),
            prefixes=["TEMPORARY"],
        )

    def start(self) -> None:
        """Creates the table, empty; a rerun starts afresh."""

        def run() -> None:
            with writing(self.url) as connection:
                self._table.drop(connection, checkfirst=True)
                self._table.create(connection)
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql(f"ALTER TABLE {self._table.name} SET UNLOGGED")
                connection.execute(self._table.insert().values(_FIRST))

        retried(run)

    def check_whole(self) -> None:
        """Raises SeenLostError when a crash of the server has emptied the table since its start."""
        first = sa.and_(*(self._table.c[name] == value for name, value in _FIRST.items()))
        with connect(self.url) as connection, connection.begin():
            if connection.execute(sa.select(self._table).where(first)).first() is None:
                raise SeenLostError(
                    "the warehouse crashed while the source was read, and its list of what the source holds is lost; "
                    "no copy was ended: clear the extract task to read again"
                )

    def drop(self) -> None:
        """Removes the table; does nothing where there is none."""

        def run() -> None:
            with writing(self.url) as connection:
                self._table.drop(connection, checkfirst=True)

        retried(run)

    def add(self, listings: Sequence[tuple[str, str]]) -> None:
        """Notes the keys of listings that the source holds."""
        if not listings:
            return

        def run() -> None:
            with writing(self.url) as connection:
                insert_batch(connection, self._table, _batch_of(listings))

        retried(run)

    def add_new(self, listings: Sequence[tuple[str, str]]) -> list[bool]:
        """Notes keys and tells of each whether it is new: the first of its kind, here and in all batches before."""
        if not listings:
            return []
        distinct = sorted(set(listings))

        def run() -> set[tuple[str, str]]:
            with writing(self.url) as connection:
                self._batch.create(connection)
                insert_batch(connection, self._batch, _batch_of(distinct))
                chosen = sa.select(self._batch).where(sa.true()).order_by(*self._batch.c)
                insert = insert_for(connection, self._table).from_select(_KEY, chosen).on_conflict_do_nothing()
                new = {(row[0], row[1]) for row in connection.execute(insert.returning(*self._table.c))}
                self._batch.drop(connection)
            return new

        new, answers = retried(run), []
        for key in listings:
            answers.append(key in new)
            new.discard(key)
        return answers

    def withdrawn(
        self, task: str, *, as_of: datetime, max_share: float, incomplete: Collection[str] = ()
    ) -> tuple[Iterator[Sequence[str]], dict[str, str]]:
        """(merchant, listing, locale) of live copy behind which no seen listing stands, of the merchants seen.

        A merchant that would lose more than `max_share` of its copy is left alone, since its feed is more likely cut short
        than its shop closed; the second value says so, by merchant. So are merchants in `incomplete`, whose source was not
        read to its end, and copy newer than `as_of`.
        """
        copy, seen = listing_copy.c, self._table.c
        joined = listing_copy.outerjoin(
            self._table, sa.and_(copy.merchant_id == seen.merchant_id, copy.listing_id == seen.listing_id)
        )
        gone = sa.and_(seen.listing_id.is_(None), copy.source_updated_at <= as_of)
        live = sa.and_(
            copy.enhancement_task == task,
            copy.retired_at.is_(None),
            copy.arm == TREATMENT,
            sa.not_(copy.pinned),
            copy.merchant_id.in_(sa.select(seen.merchant_id).distinct()),
        )
        lost = sa.func.sum(sa.case((gone, 1), else_=0))
        shares = sa.select(copy.merchant_id, sa.func.count(), lost).select_from(joined).where(live)
        with connect(self.url) as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"ANALYZE {self._table.name}")
            found = connection.execute(shares.group_by(copy.merchant_id).having(lost > 0)).all()
        refused = {m: f"{n} of {of} gone" for m, of, n in found if of > MIN_LIVE and n > max_share * of}
        refused |= {m: "its source was not read to the end" for m, _, _ in found if m in incomplete}
        if len(refused) == len(found):
            return iter(()), refused
        chosen = sa.select(copy.merchant_id, copy.listing_id, copy.locale).select_from(joined).where(live, gone)
        return self._stream(chosen.where(copy.merchant_id.not_in(refused))), refused

    def _stream(self, query: sa.Select[str, str, str]) -> Iterator[Sequence[str]]:
        with connect(self.url) as connection, connection.begin():
            result = connection.execute(query, execution_options={"yield_per": 5_000})
            for rows in result.partitions():
                yield from rows


def _batch_of(listings: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    columns = [pa.array([key[i] for key in listings], pa.string()) for i in (0, 1)]
    return pa.RecordBatch.from_arrays(columns, names=list(_KEY))
