"""Staging tables: filled from Parquet parts without a Python object per row, deduplicated, audited, then dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from include.settings import digest
from include.warehouse.bulk import Poisoned, fill_new, insert_isolating, is_data_error
from include.warehouse.database import UtcDateTime, connect, retried, writing
from include.warehouse.schema import key_text

log = logging.getLogger(__name__)

LISTING = ("merchant_id", "listing_id")
BATCH_ROWS = 8_192

# Per kind of staging table: its columns besides the listing's key.
_COLUMNS: dict[str, list[tuple[str, Any]]] = {
    "copy": [
        ("text", sa.Text),
        ("locale", sa.Text),
        ("text_id", sa.Text),
        ("content_hash", sa.Text),
        ("staleness_key", sa.Text),
        ("source_hash", sa.Text),
        ("judge_score", sa.Float),
        ("source_updated_at", UtcDateTime),
        ("model", sa.Text),
        ("engine_profile", sa.Text),
        ("run_id", sa.Text),
    ],
    "quarantine": [(name, sa.Text) for name in ("staleness_key", "stage", "reason", "detail", "output")],
    "same": [("staleness_key", sa.Text), ("source_hash", sa.Text)],
    "ended": [("locale", sa.Text), ("source_updated_at", UtcDateTime), ("reason", sa.Text)],
}
KINDS = tuple(_COLUMNS)


class Staging:
    """One staging table of one run and enhancement task. Its name is the same on a rerun, which starts it afresh."""

    def __init__(self, kind: str, run_id: str, task: str, url: str) -> None:
        self.url, self.rows = url, 0
        self.columns = tuple(name for name, _ in _COLUMNS[kind])
        self.table = sa.Table(
            f"staging_{kind}_{digest([run_id, task])}",
            sa.MetaData(),
            *(sa.Column(name, key_text()) for name in LISTING),
            *(sa.Column(name, column) for name, column in _COLUMNS[kind]),
        )
        self._index = sa.Index(f"ix_{self.table.name}", *(self.table.c[name] for name in LISTING), unique=True)

    def fill(self, read: Callable[[], Iterable[pa.RecordBatch]], poisoned: Poisoned) -> int:
        """Creates the table and fills it in one transaction; `rows` says how many it then holds.

        Returns how many twins were removed again: rows of the same key and an older or equal version. Where the database
        refuses a row, all is read once more, to tell which.
        """

        def isolated(connection: sa.Connection) -> int:
            return sum(insert_isolating(connection, self.table, batch, poisoned) for batch in of_fair_size(read()))

        try:
            return self._fill(lambda connection: fill_new(connection, self.table, read()))
        except Exception as error:
            if not is_data_error(error):
                raise
            log.warning(
                "%s: filled again, row by row where it must be: %s", self.table.name, str(error).splitlines()[0]
            )
        return self._fill(isolated)

    def _fill(self, insert: Callable[[sa.Connection], int]) -> int:
        with writing(self.url) as connection:
            postgres = connection.dialect.name == "postgresql"
            self.table.drop(connection, checkfirst=True)
            created = sa.schema.CreateTable(self.table).compile(connection).string
            # Unlogged: a crash of the server empties it, and the rerun fills it again.
            connection.exec_driver_sql(
                created.replace("CREATE TABLE", "CREATE UNLOGGED TABLE") if postgres else created
            )
            inserted = insert(connection)
            twins = self._index_or_deduplicate(connection)
            if postgres:
                connection.exec_driver_sql(f"ANALYZE {self.table.name} ({', '.join(LISTING)})")
        self.rows = inserted - twins
        return twins

    def _index_or_deduplicate(self, connection: sa.Connection) -> int:
        """A unique index proves that keys are distinct; where it cannot be built, only the highest version is kept."""
        try:
            with connection.begin_nested():
                self._index.create(connection)
            return 0
        except sa.exc.IntegrityError:
            address: sa.ColumnElement[object] = sa.literal_column(
                "ctid" if connection.dialect.name == "postgresql" else "rowid"
            )
            versions = [self.table.c[name].desc() for name in self.columns if name != "judge_score"]
            if "source_updated_at" in self.columns:
                versions.insert(0, self.table.c.source_updated_at.desc())
            ranked = sa.select(
                address.label("address"),
                sa.func.row_number()
                .over(partition_by=[self.table.c[name] for name in LISTING], order_by=versions)
                .label("n"),
            ).subquery()
            removed = connection.execute(
                self.table.delete().where(address.in_(sa.select(ranked.c.address).where(ranked.c.n > 1)))
            ).rowcount
            self._index.create(connection)
            return removed

    def is_lost(self, connection: sa.Connection) -> bool:
        """Whether a crash of the server has emptied the table since it was filled; a crash never takes a part of it."""
        return self.rows > 0 and connection.execute(sa.select(self.table.c.listing_id).limit(1)).first() is None

    def drop(self) -> None:
        """Removes the table; does nothing where there is none."""

        def run() -> None:
            with writing(self.url) as connection:
                self.table.drop(connection, checkfirst=True)

        retried(run)


def of_fair_size(batches: Iterable[pa.RecordBatch], rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `rows`: parts may be small, and every batch costs a few round trips."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(b.num_rows for b in held) >= rows:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def staging_tables(url: str) -> list[str]:
    """Names of all staging tables that stand in the warehouse."""
    with connect(url) as connection:
        return [name for name in sa.inspect(connection).get_table_names() if name.startswith("staging_")]
