"""The hash of the source row that a copy came from.

Revision ID: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("listing_copy", sa.Column("source_hash", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("listing_copy", "source_hash")
