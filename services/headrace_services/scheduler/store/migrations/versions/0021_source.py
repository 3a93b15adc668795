"""The trial of another study whose configuration a trial has."""

from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Trials of before have configurations of their own."""
    op.execute("ALTER TABLE trial ADD COLUMN source BIGINT")
