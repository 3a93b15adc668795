"""Whether a study tries each point of a finite space once, while there are untried ones."""

from alembic import op

revision = "0052"
down_revision = "0051"


def upgrade() -> None:
    """Studies that exist keep the order of their points. A replica of before tries points again."""
    op.execute("ALTER TABLE study ADD COLUMN distinct_points BOOLEAN NOT NULL DEFAULT false")
