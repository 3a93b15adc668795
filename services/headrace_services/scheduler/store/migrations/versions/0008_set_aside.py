"""Which refused messages a worker keeps, in its own words."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE worker ADD COLUMN set_aside TEXT NOT NULL DEFAULT ''")
