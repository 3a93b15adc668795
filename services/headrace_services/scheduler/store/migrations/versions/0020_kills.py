"""How often in a row a trial's own process was killed."""

from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Kills of before count as other losses."""
    op.execute("ALTER TABLE trial ADD COLUMN kills_in_row INTEGER NOT NULL DEFAULT 0")
