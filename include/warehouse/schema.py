"""The warehouse's tables. Their history is in `migrations/`; a test holds the two together.

Keys are compared byte by byte (collation "C") on both databases: faster than a language's order, and the same everywhere.
No index stands on a text of free length, since PostgreSQL refuses entries above 2,704 bytes. Readers use the views
`current_copy` (one live text per key) and `copy_timeline` (which copy was live when, for which run).
"""

from __future__ import annotations

import sqlalchemy as sa

from include.warehouse.database import UtcDateTime

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

KEY = ("merchant_id", "listing_id", "enhancement_task")
TREATMENT, HOLDOUT = "treatment", "holdout"
REVERTED = "reverted"


def key_text() -> sa.Text:
    """Type of identifiers: text in byte order."""
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _copy_columns(*, primary_key: bool) -> list[sa.Column[object]]:
    keys: list[sa.Column[object]] = [
        sa.Column(name, key_text(), primary_key=primary_key, nullable=False) for name in KEY
    ]
    return [
        *keys,
        sa.Column("text", sa.Text),  # null only in the holdout arm
        sa.Column("locale", sa.Text, nullable=False),
        sa.Column("arm", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("engine_profile", sa.Text, nullable=False),
        sa.Column("template_version", sa.Text, nullable=False),
        sa.Column("text_id", sa.Text, nullable=False),  # hash of the rendered prompt within its locale
        sa.Column("content_hash", sa.Text, nullable=False),
        sa.Column("staleness_key", sa.Text, nullable=False),
        sa.Column("judge_score", sa.Float),
        sa.Column("source_updated_at", UtcDateTime, nullable=False),
        sa.Column(
            "extracted_at", UtcDateTime, nullable=False
        ),  # second part of the version: when its run read the source
        sa.Column("run_id", key_text(), nullable=False),
        sa.Column("published_at", UtcDateTime, nullable=False),
    ]


listing_copy = sa.Table(
    "listing_copy",
    metadata,
    *_copy_columns(primary_key=True),
    sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("retired_at", UtcDateTime),  # the copy is no longer live; the row stays as a guard against older runs
    # Of a source row that is known to lead to `staleness_key`; empty: none is, so the row is cleaned and compared.
    sa.Column("source_hash", sa.Text, nullable=False, server_default=""),
    sa.Index("ix_listing_copy_run_id", "run_id"),
)

copy_history = sa.Table(
    "copy_history",
    metadata,
    *_copy_columns(primary_key=False),
    sa.Column("ended_at", UtcDateTime, nullable=False),
    sa.Column("ended_by", key_text(), nullable=False),  # run id
    sa.Column("end_reason", sa.Text, nullable=False),  # replaced, retired, holdout, reverted
    sa.Index("ix_copy_history_merchant_id_listing_id", "merchant_id", "listing_id"),
    sa.Index("ix_copy_history_run_id", "run_id"),
    sa.Index("ix_copy_history_ended_by", "ended_by"),
)

quarantine = sa.Table(
    "quarantine",
    metadata,
    *[sa.Column(name, key_text(), primary_key=True) for name in KEY],
    sa.Column("staleness_key", sa.Text, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("output", sa.Text, nullable=False),
    sa.Column("run_id", key_text(), nullable=False),
    sa.Column("quarantined_at", UtcDateTime, nullable=False),
    sa.Index("ix_quarantine_run_id", "run_id"),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("run_id", key_text(), primary_key=True),
    sa.Column("enhancement_task", key_text(), primary_key=True),
    sa.Column("partition_date", sa.Date, nullable=False),
    sa.Column("interval_start", UtcDateTime, nullable=False),
    sa.Column("interval_end", UtcDateTime, nullable=False),
    sa.Column("status", sa.Text, nullable=False),  # loaded (committed), published (read back and equal), reverted
    sa.Column("scope", sa.Text, nullable=False),  # hash of what decides which listings need work, besides their content
    sa.Column("complete_until", UtcDateTime),  # every change before it is dealt with; null: not known
    sa.Column("counts", sa.JSON, nullable=False),
    sa.Column("extracted_at", UtcDateTime, nullable=False),
    sa.Column("loaded_at", UtcDateTime, nullable=False),
    sa.Column("published_at", UtcDateTime),
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("partition_date", sa.Date, primary_key=True),
    sa.Column("enhancement_task", key_text(), primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("acquired_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
)
