"""How many configurations a study tries, counted when it is created."""

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the column. An older study on a small grid counts as one of `max_trials` trials in its status."""
    op.execute("ALTER TABLE study ADD COLUMN planned BIGINT")
