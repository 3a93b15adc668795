"""Grants hold slots, leases speak for trials: what was one row is two."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Give every worker's lease a grant of its own, with one part."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    """
    CREATE TABLE slot_grant (
        id TEXT NOT NULL,
        study_id BIGINT NOT NULL,
        slot_count INTEGER NOT NULL,
        milli INTEGER DEFAULT '1000' NOT NULL,
        memory_bytes BIGINT DEFAULT '0' NOT NULL,
        model TEXT DEFAULT '' NOT NULL,
        live BOOLEAN DEFAULT true NOT NULL,
        grant_time TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        end_time TIMESTAMP WITH TIME ZONE,
        CONSTRAINT slot_grant_pk PRIMARY KEY (id),
        CONSTRAINT slot_grant_study_id_fk FOREIGN KEY (study_id) REFERENCES study (id) ON DELETE CASCADE,
        CONSTRAINT slot_grant_end CHECK (live = (end_time IS NULL)),
        CONSTRAINT slot_grant_slots CHECK (slot_count >= 1),
        CONSTRAINT slot_grant_milli CHECK (milli = 1000 OR (milli BETWEEN 1 AND 999 AND slot_count = 1))
    )
    """,
    "CREATE INDEX slot_grant_study ON slot_grant (study_id)",
    """
    CREATE TABLE grant_part (
        grant_id TEXT NOT NULL,
        worker_id BIGINT NOT NULL,
        incarnation TEXT NOT NULL,
        slots INTEGER[] NOT NULL,
        CONSTRAINT grant_part_pk PRIMARY KEY (grant_id, worker_id),
        CONSTRAINT grant_part_grant_id_fk FOREIGN KEY (grant_id) REFERENCES slot_grant (id) ON DELETE CASCADE,
        CONSTRAINT grant_part_worker_id_fk FOREIGN KEY (worker_id) REFERENCES worker (id),
        CONSTRAINT grant_part_slots CHECK (cardinality(slots) >= 1)
    )
    """,
    "CREATE INDEX grant_part_worker ON grant_part (worker_id)",
    """
    INSERT INTO slot_grant (id, study_id, slot_count, milli, memory_bytes, model, live, grant_time, end_time)
    SELECT id, study_id, cardinality(slots), milli, memory_bytes, model, live, grant_time, end_time
    FROM lease WHERE worker_id IS NOT NULL
    """,
    """
    INSERT INTO grant_part (grant_id, worker_id, incarnation, slots)
    SELECT id, worker_id, incarnation, slots FROM lease WHERE worker_id IS NOT NULL
    """,
    "ALTER TABLE slot DROP CONSTRAINT slot_lease_id_fk",
    "ALTER TABLE slot RENAME COLUMN lease_id TO grant_id",
    """
    ALTER TABLE slot ADD CONSTRAINT slot_grant_id_fk FOREIGN KEY (grant_id) REFERENCES slot_grant (id)
    DEFERRABLE INITIALLY DEFERRED
    """,
    "DROP INDEX slot_lease",
    "DROP INDEX lease_worker",
    "CREATE INDEX slot_grant_id ON slot (grant_id) WHERE grant_id IS NOT NULL",
    "ALTER TABLE lease ADD COLUMN grant_id TEXT",
    "UPDATE lease SET grant_id = id WHERE worker_id IS NOT NULL",
    "ALTER TABLE lease DROP CONSTRAINT lease_slots, DROP CONSTRAINT lease_milli, DROP CONSTRAINT lease_worker_id_fk",
    "ALTER TABLE lease DROP COLUMN slots, DROP COLUMN milli, DROP COLUMN memory_bytes, DROP COLUMN model",
    """
    ALTER TABLE lease
        ADD CONSTRAINT lease_grant_id_fk FOREIGN KEY (grant_id) REFERENCES slot_grant (id) ON DELETE CASCADE,
        ADD CONSTRAINT lease_grant_id_worker_id_fk FOREIGN KEY (grant_id, worker_id)
            REFERENCES grant_part (grant_id, worker_id),
        ADD CONSTRAINT lease_grant CHECK ((worker_id IS NULL) = (grant_id IS NULL))
    """,
    "CREATE INDEX lease_live_grant ON lease (grant_id) WHERE live",
    "CREATE INDEX lease_grant_ix ON lease (grant_id, worker_id)",
)
