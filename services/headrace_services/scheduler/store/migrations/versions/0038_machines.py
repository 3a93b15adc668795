"""Drained workers, and devices on which nothing starts."""

from alembic import op

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    """Nothing is held so far. A device that failed is remembered from its worker's next word on."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    """
    ALTER TABLE worker
        ADD COLUMN hold TEXT NOT NULL DEFAULT '' CONSTRAINT worker_hold CHECK (hold IN ('', 'CORDON', 'DRAIN')),
        ADD COLUMN hold_why TEXT NOT NULL DEFAULT '',
        ADD COLUMN hold_time TIMESTAMPTZ,
        ADD COLUMN hold_grace_s DOUBLE PRECISION,
        ADD COLUMN hold_incarnation TEXT NOT NULL DEFAULT '',
        ADD COLUMN leaving TEXT NOT NULL DEFAULT '',
        ADD CONSTRAINT worker_hold_time CHECK ((hold = '') = (hold_time IS NULL)),
        ADD CONSTRAINT worker_hold_grace CHECK (hold = 'DRAIN' OR hold_grace_s IS NULL)
    """,
    "ALTER TABLE slot ADD COLUMN offered BOOLEAN NOT NULL DEFAULT true",
    "UPDATE slot SET offered = false WHERE NOT present AND defect = ''",
    """
    CREATE TABLE cordon (
        device TEXT NOT NULL CONSTRAINT cordon_pk PRIMARY KEY,
        reason TEXT NOT NULL,
        quarantined BOOLEAN NOT NULL,
        time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
    )
    """,
)
