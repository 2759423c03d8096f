"""Alembic's entry point: `include.warehouse.migrate` hands the open connection over."""

from __future__ import annotations

from alembic import context

from include.warehouse.schema import metadata


def _own(_: object, name: str | None, kind: str, reflected: bool, compare_to: object) -> bool:
    """Other tables of the warehouse, staging tables among them, are none of ours to compare."""
    return not (kind == "table" and reflected and name not in metadata.tables)


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    include_object=_own,
    transactional_ddl=True,
    version_table="listing_schema_version",
)
with context.begin_transaction():
    context.run_migrations()
