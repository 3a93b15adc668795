"""Where a worker runs, and which of its devices failed."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add the columns."""
    op.execute("ALTER TABLE worker ADD COLUMN host TEXT NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE worker ADD COLUMN home TEXT NOT NULL DEFAULT ''")
    op.execute("ALTER TABLE slot ADD COLUMN defect TEXT NOT NULL DEFAULT ''")
