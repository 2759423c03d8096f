"""A catalog table from a CSV file: the sample listings, or a file of the user's own."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import sqlalchemy as sa

from include.extraction.listings import RowError, to_utc
from include.runs import interval_of
from include.settings import CatalogSettings
from include.warehouse.database import UtcDateTime, engine_for, writing

COLUMNS = ("merchant_id", "listing_id", "title", "description", "brand", "category", "locale", "attributes")
REQUIRED = ("title", "description")


class SeedError(ValueError):
    """The file cannot become a catalog; the message names the line and the column."""


def _listings_table(name: str) -> sa.Table:
    texts = [sa.Column(column, sa.Text, primary_key=column in COLUMNS[:2]) for column in COLUMNS]
    return sa.Table(name, sa.MetaData(), *texts, sa.Column("updated_at", UtcDateTime, nullable=False))


def read_csv(path: Path, default_updated_at: datetime) -> Iterator[dict[str, object]]:
    """Rows for the catalog. A missing merchant is `default`, a missing listing id the line number, a missing `updated_at`
    the given moment.

    Raises SeedError for a file without needed columns or rows, in another encoding, with a column named twice, a line of
    another width, a twin key or an unreadable time.
    """
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.DictReader(file)
        names = reader.fieldnames or []
        if any("\0" in name for name in names):
            raise SeedError(f"{path} is UTF-16, wanted is UTF-8: `iconv -f UTF-16 -t UTF-8 {path} > utf-8.csv`")
        if twice := [name for name in (*COLUMNS, "updated_at") if names.count(name) > 1]:
            raise SeedError(f"{path} names the column {twice[0]!r} twice in its first line: rename or remove one")
        if missing := [column for column in REQUIRED if column not in names]:
            raise SeedError(f"{path} lacks the columns {missing}; it has {list(names)}. Name them in its first line")
        seen: set[tuple[object, object]] = set()
        for row in reader:
            line = reader.line_num
            if None in row or None in row.values():
                raise SeedError(f"{path} line {line}: {len(names)} columns expected; quote fields that hold commas")
            values: dict[str, object] = {}
            for column in COLUMNS:
                text = row.get(column) or ""
                if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
                    raise SeedError(f"{path} line {line}, {column}: not UTF-8; save the file as UTF-8")
                values[column] = text
            values["merchant_id"] = values["merchant_id"] or "default"
            values["listing_id"] = values["listing_id"] or f"line-{line}"
            try:
                values["updated_at"] = to_utc(row.get("updated_at"), default_updated_at)
            except RowError as error:
                raise SeedError(f"{path} line {line}, updated_at: {error}") from None
            key = (values["merchant_id"], values["listing_id"])
            if key in seen:
                raise SeedError(f"{path} line {line}: merchant_id and listing_id {key} stand there twice")
            seen.add(key)
            yield values
        if not seen:
            raise SeedError(f"{path} has no rows; the catalog is left as it was. Give lines below the header")


def seed_catalog(url: str, csv_path: Path, settings: CatalogSettings, partition_date: date | None = None) -> int:
    """Replaces the catalog table's rows with the file's, in one transaction. Returns the number of rows.

    Rows without `updated_at` are dated to the start of the partition date's interval; without a date to the year 2000, which
    is in reach of every run. It is the same every time, so that a second run finds them unchanged.
    """
    if not csv_path.is_file():
        raise SeedError(f"no file {csv_path}: give the path of a CSV file such as include/samples/listings.csv")
    moment = interval_of(partition_date or date(2000, 1, 1))[0]
    table = _listings_table(settings.table)
    backend = engine_for(url).url
    if backend.get_backend_name() == "sqlite" and backend.database:
        Path(backend.database).parent.mkdir(parents=True, exist_ok=True)
    rows = 0
    with writing(url) as connection:
        table.create(connection, checkfirst=True)
        connection.execute(table.delete())
        batch: list[dict[str, object]] = []
        for values in read_csv(csv_path, moment):
            if (
                connection.dialect.name == "postgresql"
            ):  # it takes no NUL; on SQLite the extraction removes and counts it
                values = {k: v.replace("\0", "") if isinstance(v, str) else v for k, v in values.items()}
            batch.append(values)
            rows += 1
            if len(batch) == 1_000:
                connection.execute(table.insert(), batch)
                batch = []
        if batch:
            connection.execute(table.insert(), batch)
    return rows
