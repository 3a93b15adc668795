"""Studies that begin after others, and what gates have checked."""

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Studies of before wait for none and check nothing."""
    op.execute("ALTER TABLE study ADD COLUMN after TEXT, ADD COLUMN checks TEXT")
    op.execute("CREATE INDEX study_waiting ON study (id) WHERE after IS NOT NULL AND end_time IS NULL")
    op.execute("CREATE INDEX study_checks ON study (checks) WHERE checks IS NOT NULL")
