"""Placement: parts of devices, shares of the cluster, speeds, and trials that are asked to leave."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns and the table."""
    op.execute(
        """
        ALTER TABLE study
            ADD COLUMN weight DOUBLE PRECISION NOT NULL DEFAULT 1,
            ADD COLUMN priority INTEGER NOT NULL DEFAULT 0,
            ADD COLUMN standing JSONB NOT NULL DEFAULT '{}',
            ADD CONSTRAINT study_weight CHECK (weight > 0)
        """
    )
    op.execute("CREATE INDEX study_active ON study (id) WHERE state = 'ACTIVE'")
    op.execute("ALTER TABLE worker ADD COLUMN cpus INTEGER NOT NULL DEFAULT 0")
    op.execute(
        """
        ALTER TABLE lease
            ADD COLUMN milli INTEGER NOT NULL DEFAULT 1000,
            ADD COLUMN memory_bytes BIGINT NOT NULL DEFAULT 0,
            ADD COLUMN model TEXT NOT NULL DEFAULT '',
            ADD CONSTRAINT lease_milli
                CHECK (milli = 1000 OR (milli BETWEEN 1 AND 999 AND cardinality(slots) <= 1))
        """
    )
    op.execute(
        """
        ALTER TABLE slot
            ADD COLUMN shared_milli INTEGER NOT NULL DEFAULT 0,
            ADD COLUMN shared_memory_bytes BIGINT NOT NULL DEFAULT 0,
            ADD COLUMN cores DOUBLE PRECISION NOT NULL DEFAULT 0,
            ADD CONSTRAINT slot_parts CHECK (shared_milli BETWEEN 0 AND 1000 AND shared_memory_bytes >= 0),
            ADD CONSTRAINT slot_whole CHECK (lease_id IS NULL OR shared_milli = 0)
        """
    )
    op.execute("ALTER TABLE trial ADD COLUMN speeds JSONB NOT NULL DEFAULT '{}'")
    op.execute(
        """
        CREATE TABLE leave (
            lease_id TEXT NOT NULL,
            study_id BIGINT NOT NULL,
            for_study_id BIGINT NOT NULL,
            at_report BOOLEAN NOT NULL,
            why TEXT NOT NULL,
            CONSTRAINT leave_pk PRIMARY KEY (lease_id),
            CONSTRAINT leave_lease_id_fk FOREIGN KEY (lease_id) REFERENCES lease (id) ON DELETE CASCADE,
            CONSTRAINT leave_for_study_id_fk FOREIGN KEY (for_study_id) REFERENCES study (id) ON DELETE CASCADE
        )
        """
    )
    op.execute("CREATE INDEX leave_study ON leave (study_id)")
    op.execute("CREATE INDEX leave_for_study ON leave (for_study_id)")
