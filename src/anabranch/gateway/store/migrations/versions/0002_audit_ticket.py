"""An index for finding a request's own records, which feedback does."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("audit_ticket", "audit", ["ticket"])


def downgrade() -> None:
    op.drop_index("audit_ticket", "audit")
