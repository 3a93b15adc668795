"""A worker's home has a lock that no copy has; a worker that does not reach its programs is put aside for a while."""

from alembic import op

revision = "0047"
down_revision = "0045"


def upgrade() -> None:
    """Nothing is known of it yet."""
    op.execute(
        """
        ALTER TABLE worker
            ADD COLUMN home_lock TEXT NOT NULL DEFAULT '',
            ADD COLUMN unreached INTEGER NOT NULL DEFAULT 0,
            ADD COLUMN unreached_why TEXT NOT NULL DEFAULT '',
            ADD COLUMN unreached_time TIMESTAMPTZ,
            ADD COLUMN aside_until TIMESTAMPTZ,
            ADD CONSTRAINT worker_unreached CHECK ((unreached = 0) = (unreached_time IS NULL)),
            ADD CONSTRAINT worker_aside CHECK (unreached > 0 OR aside_until IS NULL)
        """
    )
