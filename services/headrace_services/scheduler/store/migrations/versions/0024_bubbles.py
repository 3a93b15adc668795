"""Ephemeral slots: devices of a large job, which trials have in its bubbles alone."""

from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """All slots and grants so far are ordinary."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    """
    ALTER TABLE slot
        ADD COLUMN owner TEXT NOT NULL DEFAULT '',
        ADD COLUMN stage INTEGER,
        ADD COLUMN duty DOUBLE PRECISION,
        ADD CONSTRAINT slot_ephemeral CHECK (owner = '' OR shared_milli = 0),
        ADD CONSTRAINT slot_owner CHECK ((owner = '') = (stage IS NULL) AND (owner = '') = (duty IS NULL)),
        ADD CONSTRAINT slot_duty CHECK (duty BETWEEN 0 AND 1)
    """,
    """
    ALTER TABLE slot_grant
        ADD COLUMN bubbles TEXT NOT NULL DEFAULT '',
        ADD CONSTRAINT slot_grant_bubbles CHECK (bubbles = '' OR (slot_count = 1 AND milli = 1000))
    """,
    "ALTER TABLE trial ADD COLUMN bubbles TEXT[] NOT NULL DEFAULT '{}'",
    "ALTER TABLE leave ALTER COLUMN for_study_id DROP NOT NULL",
)
