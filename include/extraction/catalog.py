"""The merchant catalog as a source: one SQL table or view, streamed in batches through SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

import sqlalchemy as sa

from include.extraction.listings import FIELDS, to_utc
from include.settings import CatalogSettings
from include.warehouse.database import connect

NEEDED = ("merchant_id", "listing_id", "title", "description")
OPTIONAL = ("brand", "category", "locale", "attributes")


class CatalogError(ValueError):
    """The catalog has no such table, or the table lacks a column that the extraction needs."""


class Window(NamedTuple):
    """Which rows are asked for: changed since `start` (None: all) and before `end`."""

    start: datetime | None
    end: datetime


class Catalog:
    """The table of one catalog. Raises CatalogError when it is opened on a table that does not fit."""

    def __init__(self, url: str, settings: CatalogSettings, merchants: Sequence[str] = ()) -> None:
        self.url, self.settings, self.merchants = url, settings, tuple(merchants)
        schema, _, name = settings.table.rpartition(".")
        with connect(url) as connection:
            inspector = sa.inspect(connection)
            try:
                found = {c["name"]: c["type"] for c in inspector.get_columns(name, schema or None)}
                uniques = [inspector.get_pk_constraint(name, schema or None)["constrained_columns"]]
                uniques += [u["column_names"] for u in inspector.get_unique_constraints(name, schema or None)]
            except sa.exc.NoSuchTableError:
                tables = sorted([*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)])
                raise CatalogError(
                    f"the catalog has no table {settings.table!r}; it has {tables[:20]}. Set catalog.table in pipeline.yaml"
                ) from None
        wanted = {name: settings.columns.get(name, name) for name in (*NEEDED, *OPTIONAL)}
        wanted["source_updated_at"] = settings.updated_column
        missing = {
            field: column
            for field, column in wanted.items()
            if column not in found and (field not in OPTIONAL or field in settings.columns)
        }
        if missing:
            raise CatalogError(
                f"table {settings.table!r} lacks {', '.join(f'{column!r} ({field})' for field, column in missing.items())}; "
                f"it has {sorted(found)}. Map them under catalog.columns or catalog.updated_column in pipeline.yaml"
            )
        keys = {wanted["merchant_id"], wanted["listing_id"]}
        self.unique_keys = any(columns and keys.issuperset(columns) for columns in uniques)
        # Columns without types: a value that does not fit its declared type must reach cleaning, not raise in the driver.
        self._table = sa.table(name, *(sa.column(column) for column in found), schema=schema or None)
        self._columns = [
            self._table.c[wanted[field]].label(field) if wanted[field] in found else sa.null().label(field)
            for field in FIELDS
        ]
        self._listing = self._table.c[wanted["listing_id"]]
        self._merchant, self._updated = self._table.c[wanted["merchant_id"]], self._table.c[wanted["source_updated_at"]]
        # Text compares as text: SQL can bound a real timestamp only, anything else is bounded after parsing.
        kind = found[wanted["source_updated_at"]]
        self._bounded_in_sql = isinstance(kind, sa.DateTime | sa.Date) and not url.startswith("sqlite")
        self._naive = isinstance(kind, sa.Date) or not getattr(kind, "timezone", False)

    def _chosen(self, window: Window) -> list[sa.ColumnElement[bool]]:
        conditions: list[sa.ColumnElement[bool]] = []
        if self.merchants:
            conditions.append(self._merchant.in_(self.merchants))
        if window.start is not None and self._bounded_in_sql:
            start = window.start.replace(tzinfo=None) if self._naive else window.start
            conditions.append(sa.or_(self._updated >= start, self._updated.is_(None)))
        return conditions

    def count(self, window: Window) -> int:
        """Rows that `batches` will give, for the number of shards and the time left."""
        query = sa.select(sa.func.count()).select_from(self._table).where(*self._chosen(window))
        with connect(self.url) as connection, connection.begin():
            return int(connection.scalar(query) or 0)

    def batches(self, window: Window, reader: int = 0, readers: int = 1) -> Iterator[Sequence[Sequence[object]]]:
        """Raw rows in the order of FIELDS. PostgreSQL keeps the result on the server (a named cursor).

        Rows changed at or after `window.end` come, too: they tell what a run over a past date cannot reach. With several
        readers each gets the rows of its keys, so that a row is read once whenever each of them starts.
        """
        query = sa.select(*self._columns).where(*self._chosen(window))
        if readers > 1:
            share = sa.func.hashtext(sa.cast(self._listing, sa.Text)).op("&")(0x7FFFFFFF) % readers
            query = query.where(share == reader)
        with connect(self.url) as connection, connection.begin():
            result = connection.execution_options(yield_per=self.settings.batch_rows).execute(query)
            yield from result.partitions()

    def newest_day(self) -> date | None:
        """The day in UTC of the catalog's latest change; None for a catalog without one. Text is compared as text."""
        with connect(self.url) as connection, connection.begin():
            newest = connection.scalar(sa.select(sa.func.max(self._updated)).select_from(self._table))
        return to_utc(newest, datetime.min.replace(tzinfo=UTC)).date() if newest else None
