"""Priced pauses: what was measured on the way to a rung, and how long a trial's last restore took."""

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns."""
    op.execute("ALTER TABLE rung_result ADD COLUMN cost JSONB")
    op.execute("ALTER TABLE trial ADD COLUMN read_s DOUBLE PRECISION")
