"""Trials whose checkpoint cannot be loaded are tried again after a pause; stores are known by their ids."""

from alembic import op

revision = "0048"
down_revision = "0047"
# A replica of before would place trials within their pauses, and charge them for stores that are away.


def upgrade() -> None:
    """No store has a marker yet: the first worker that uses its address writes it."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    "ALTER TABLE trial ADD COLUMN unread JSONB, ADD COLUMN not_before_s DOUBLE PRECISION",
    'UPDATE trial SET unread = \'{"tries": 1, "missing": true}\' WHERE checkpoint_missing',
    "ALTER TABLE trial DROP COLUMN checkpoint_missing",
    "CREATE INDEX trial_rests ON trial (study_id, not_before_s) WHERE not_before_s IS NOT NULL",
    """
    CREATE TABLE checkpoint_store (
        url TEXT PRIMARY KEY,
        id TEXT NOT NULL,
        seen BOOLEAN NOT NULL DEFAULT false,
        maker TEXT NOT NULL,
        create_time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
    )
    """,
)
