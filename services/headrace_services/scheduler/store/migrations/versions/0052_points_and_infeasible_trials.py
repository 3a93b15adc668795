"""Each point of a finite space once; trials that are infeasible; how long a trial has run."""

from alembic import op

revision = "0052"
down_revision = "0051"
# A replica of before cannot read a trial that is infeasible.


def upgrade() -> None:
    """Studies that exist keep the order of their points."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    "ALTER TABLE study ADD COLUMN distinct_points BOOLEAN NOT NULL DEFAULT false",
    """
    ALTER TABLE trial
        ADD COLUMN ran_s DOUBLE PRECISION NOT NULL DEFAULT 0,
        ADD COLUMN runs_since_s DOUBLE PRECISION
    """,
    "ALTER TABLE trial DROP CONSTRAINT trial_reasons",
    """
    ALTER TABLE trial ADD CONSTRAINT trial_reasons
        CHECK (reason IN ('COMPLETED', 'STOPPED_EARLY', 'FAILED', 'CANCELLED', 'INFEASIBLE'))
    """,
)
