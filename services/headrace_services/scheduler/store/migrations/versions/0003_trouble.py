"""What keeps a worker from its work, in its own words."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE worker ADD COLUMN trouble TEXT NOT NULL DEFAULT ''")
