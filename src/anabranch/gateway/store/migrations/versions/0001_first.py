"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_Big = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("old_hash", sa.String(64)),
        sa.Column("old_until", sa.Float),
        sa.Column("scopes", sa.String(200), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("expires", sa.Float),
        sa.Column("revoked", sa.Boolean, nullable=False),
    )
    op.create_table(
        "budgets",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("cap", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("spent", sa.Float, nullable=False),
        sa.Column("reserved", sa.Float, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.UniqueConstraint("key", "kind", "seconds"),
    )
    op.create_table(
        "reservations",
        sa.Column("ticket", sa.String(64), primary_key=True),
        sa.Column(
            "budget",
            sa.Integer,
            sa.ForeignKey("budgets.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("amount", sa.Float, nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("until", sa.Float, nullable=False),
    )
    op.create_index("reservations_until", "reservations", ["until"])
    op.create_table(
        "audit",
        sa.Column("number", _Big, primary_key=True, autoincrement=False),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("ticket", sa.String(64), nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_index("audit_time", "audit", ["time"])
    chain = op.create_table(
        "chain",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("number", _Big, nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.bulk_insert(chain, [{"id": 1, "number": 0, "hash": "0" * 64}])
    op.create_table(
        "contents",
        sa.Column("ticket", sa.String(64), primary_key=True),
        sa.Column("time", sa.Float, nullable=False),
        sa.Column("subject", sa.String(200), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("contents_subject", "contents", ["subject"])
    op.create_index("contents_time", "contents", ["time"])
