"""Studies that are deleted batch by batch, ages, and databases that were restored."""

from alembic import op

revision = "0040"
down_revision = "0039"

_GROWING = (
    "event",
    "report",
    "trial",
    "lease",
    "slot_grant",
    "grant_part",
    "rung_result",
    "exploit",
    "request",
)
_VACUUM = "autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05"


def upgrade() -> None:
    """Nothing is deleted, aged or restored yet. Tables of the past are vacuumed sooner: much of them goes at once."""
    op.execute(
        """
        ALTER TABLE study
            ADD COLUMN attempts_from BIGINT NOT NULL DEFAULT 0,
            ADD COLUMN delete_time TIMESTAMPTZ,
            ADD COLUMN aged JSONB NOT NULL DEFAULT '{}',
            ADD CONSTRAINT study_deleted CHECK (delete_time IS NULL OR end_time IS NOT NULL)
        """
    )
    op.execute("CREATE INDEX study_ended ON study (end_time) WHERE end_time IS NOT NULL")
    op.execute("CREATE INDEX study_live ON study (id) WHERE state IN ('ACTIVE', 'PAUSED')")
    op.execute("CREATE INDEX study_listed ON study (project, id) WHERE delete_time IS NULL")
    op.execute("CREATE INDEX study_deleted ON study (id) WHERE delete_time IS NOT NULL")
    op.execute(
        """
        CREATE TABLE tombstone (
            uid TEXT NOT NULL CONSTRAINT tombstone_pk PRIMARY KEY,
            folder TEXT NOT NULL,
            time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
        )
        """
    )
    op.execute("CREATE INDEX tombstone_time ON tombstone (time)")
    op.execute(
        """
        CREATE TABLE lineage (
            id INTEGER NOT NULL DEFAULT 1 CONSTRAINT lineage_pk PRIMARY KEY,
            fingerprint TEXT NOT NULL DEFAULT '',
            restores BIGINT NOT NULL DEFAULT 0,
            time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
            CONSTRAINT lineage_one CHECK (id = 1)
        )
        """
    )
    op.execute("INSERT INTO lineage DEFAULT VALUES")
    for table in _GROWING:
        op.execute(f"ALTER TABLE {table} SET ({_VACUUM})")
