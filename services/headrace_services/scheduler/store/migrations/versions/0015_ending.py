"""Ended studies of which trials are still to be terminated."""

from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Find them by an index."""
    op.execute("CREATE INDEX study_ending ON study (id) WHERE standing ->> 'ended_through' IS NOT NULL")
