"""Current copy, its history, quarantine, runs and leases.

Revision ID: 0001
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_TIME = sa.DateTime(timezone=True)

_COPY: list[tuple[str, Any, bool]] = [
    ("merchant_id", _KEY, False),
    ("listing_id", _KEY, False),
    ("enhancement_task", _KEY, False),
    ("text", sa.Text(), True),
    ("locale", sa.Text(), False),
    ("arm", sa.Text(), False),
    ("model", sa.Text(), False),
    ("engine_profile", sa.Text(), False),
    ("template_version", sa.Text(), False),
    ("text_id", sa.Text(), False),
    ("content_hash", sa.Text(), False),
    ("staleness_key", sa.Text(), False),
    ("judge_score", sa.Float(), True),
    ("source_updated_at", _TIME, False),
    ("extracted_at", _TIME, False),
    ("run_id", _KEY, False),
    ("published_at", _TIME, False),
]


def _copy_columns() -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=nullable) for name, kind, nullable in _COPY]


def upgrade() -> None:
    op.create_table(
        "listing_copy",
        *_copy_columns(),
        sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("retired_at", _TIME),
        sa.PrimaryKeyConstraint("merchant_id", "listing_id", "enhancement_task", name="pk_listing_copy"),
    )
    op.create_index("ix_listing_copy_run_id", "listing_copy", ["run_id"])
    op.create_table(
        "copy_history",
        *_copy_columns(),
        sa.Column("ended_at", _TIME, nullable=False),
        sa.Column("ended_by", _KEY, nullable=False),
        sa.Column("end_reason", sa.Text(), nullable=False),
    )
    op.create_index("ix_copy_history_merchant_id_listing_id", "copy_history", ["merchant_id", "listing_id"])
    op.create_index("ix_copy_history_run_id", "copy_history", ["run_id"])
    op.create_index("ix_copy_history_ended_by", "copy_history", ["ended_by"])
    op.create_table(
        "quarantine",
        sa.Column("merchant_id", _KEY, nullable=False),
        sa.Column("listing_id", _KEY, nullable=False),
        sa.Column("enhancement_task", _KEY, nullable=False),
        sa.Column("staleness_key", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("run_id", _KEY, nullable=False),
        sa.Column("quarantined_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("merchant_id", "listing_id", "enhancement_task", name="pk_quarantine"),
    )
    op.create_index("ix_quarantine_run_id", "quarantine", ["run_id"])
    op.create_table(
        "runs",
        sa.Column("run_id", _KEY, nullable=False),
        sa.Column("enhancement_task", _KEY, nullable=False),
        sa.Column("partition_date", sa.Date(), nullable=False),
        sa.Column("interval_start", _TIME, nullable=False),
        sa.Column("interval_end", _TIME, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("complete_until", _TIME),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.Column("extracted_at", _TIME, nullable=False),
        sa.Column("loaded_at", _TIME, nullable=False),
        sa.Column("published_at", _TIME),
        sa.PrimaryKeyConstraint("run_id", "enhancement_task", name="pk_runs"),
    )
    op.create_table(
        "leases",
        sa.Column("partition_date", sa.Date(), nullable=False),
        sa.Column("enhancement_task", _KEY, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("acquired_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("partition_date", "enhancement_task", name="pk_leases"),
    )
    op.execute(
        "CREATE VIEW current_copy AS SELECT merchant_id, listing_id, enhancement_task, text, locale, model, engine_profile, "
        "template_version, text_id, staleness_key, judge_score, source_updated_at, run_id, published_at, pinned "
        "FROM listing_copy WHERE arm = 'treatment' AND retired_at IS NULL"
    )
    op.execute(
        "CREATE VIEW copy_timeline AS "
        "SELECT merchant_id, listing_id, enhancement_task, text, staleness_key, run_id, published_at AS live_from, "
        "NULL AS live_until, NULL AS end_reason FROM listing_copy WHERE arm = 'treatment' AND retired_at IS NULL "
        "UNION ALL SELECT merchant_id, listing_id, enhancement_task, text, staleness_key, run_id, published_at, "
        "ended_at, end_reason FROM copy_history"
    )


def downgrade() -> None:
    op.execute("DROP VIEW copy_timeline")
    op.execute("DROP VIEW current_copy")
    for table in ("leases", "runs", "quarantine", "copy_history", "listing_copy"):
        op.drop_table(table)
