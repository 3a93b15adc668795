"""What a study's pilot has chosen."""

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Studies of before have no pilot."""
    op.execute("ALTER TABLE study ADD COLUMN scale_choice JSONB")
