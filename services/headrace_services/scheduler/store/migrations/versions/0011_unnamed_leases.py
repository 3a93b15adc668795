"""A worker's lease expires by itself once its worker does not name it any more."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Let a worker's lease have an expiry of its own."""
    op.execute("ALTER TABLE lease DROP CONSTRAINT lease_expiry")
    op.execute(
        "ALTER TABLE lease ADD CONSTRAINT lease_expiry CHECK (worker_id IS NOT NULL OR expires_at IS NOT NULL)"
    )
