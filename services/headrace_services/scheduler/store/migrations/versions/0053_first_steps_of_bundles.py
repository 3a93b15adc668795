"""What the first step of a bundle's process took."""

from alembic import op

revision = "0053"
down_revision = "0052"


def upgrade() -> None:
    """Nothing was measured before."""
    op.execute("ALTER TABLE bundle_profile ADD COLUMN first_step JSONB")
