"""A few listings as the merchant wrote them and as the warehouse has them now, for a person to read."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import sqlalchemy as sa

from include.settings import CatalogSettings, Settings
from include.warehouse.database import connect

_COPY = sa.table(
    "current_copy", *map(sa.column, ("merchant_id", "listing_id", "enhancement_task", "text", "locale", "model"))
)
_KEY = ("merchant_id", "listing_id")
WIDTH = 110


def _sample(warehouse_url: str, rows: int) -> dict[tuple[str, str], list[sa.Row[tuple[str, ...]]]]:
    """Live copy of `rows` listings, one of each merchant first, by listing."""
    one_each = sa.func.row_number().over(partition_by=_COPY.c.merchant_id, order_by=_COPY.c.listing_id).label("turn")
    listings = sa.select(_COPY.c.merchant_id, _COPY.c.listing_id, one_each).group_by(
        _COPY.c.merchant_id, _COPY.c.listing_id
    )
    chosen = listings.subquery()
    first = (
        sa.select(chosen.c.merchant_id, chosen.c.listing_id).order_by(chosen.c.turn, chosen.c.merchant_id).limit(rows)
    )
    found: dict[tuple[str, str], list[sa.Row[tuple[str, ...]]]] = {}
    with connect(warehouse_url) as connection, connection.begin():
        for merchant_id, listing_id in connection.execute(first).all():
            same = sa.and_(_COPY.c.merchant_id == merchant_id, _COPY.c.listing_id == listing_id)
            query = sa.select(_COPY).where(same).order_by(_COPY.c.enhancement_task.desc())
            found[merchant_id, listing_id] = list(connection.execute(query))
    return found


def _originals(
    catalog_url: str, settings: CatalogSettings, keys: Sequence[tuple[str, str]], fields: Sequence[str]
) -> dict[tuple[str, str], dict[str, str]]:
    columns: dict[str, sa.ColumnClause[str]] = {
        name: sa.column(settings.columns.get(name, name)) for name in (*_KEY, *fields)
    }
    schema, _, table = settings.table.rpartition(".")
    source = sa.table(table, *columns.values(), schema=schema or None)
    query = sa.select(*(column.label(name) for name, column in columns.items())).select_from(source)
    found: dict[tuple[str, str], dict[str, str]] = {}
    with connect(catalog_url) as connection, connection.begin():
        for merchant_id, listing_id in keys:
            same = sa.and_(columns["merchant_id"] == merchant_id, columns["listing_id"] == listing_id)
            row = connection.execute(query.where(same)).mappings().first()
            found[merchant_id, listing_id] = {name: str(row[name] or "") for name in fields} if row else {}
    return found


def _line(label: str, text: str) -> str:
    shown = textwrap.shorten(text.replace("\0", ""), 400, placeholder=" …") or "(empty)"
    return textwrap.fill(shown, WIDTH, initial_indent=f"  {label:<20} ", subsequent_indent=" " * 23)


def preview(settings: Settings, *, catalog_url: str, warehouse_url: str, rows: int = 5) -> str:
    """Before and after of `rows` listings that have live copy, from as many merchants as there are.

    Raises UnreachableError for a database that is not there.
    """
    copies = _sample(warehouse_url, rows)
    if not copies:
        return "the warehouse holds no copy yet: `make run` first, or see its summary for what the gate said"
    fields = sorted({task.output_field for task in settings.tasks.values()})
    before = _originals(catalog_url, settings.pipeline.catalog, list(copies), fields)
    blocks = []
    for key, rows_of_listing in copies.items():
        lines = [f"{'/'.join(key)}  ({rows_of_listing[0].locale})"]
        for copy in rows_of_listing:
            task = settings.tasks.get(copy.enhancement_task)
            original = before[key].get(task.output_field, "") if task else ""
            lines += [_line(f"{copy.enhancement_task} before", original), _line("after", copy.text)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
