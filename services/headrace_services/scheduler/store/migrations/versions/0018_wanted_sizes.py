"""What the next trial of a study waits for may differ between its trials: in shares of a slot, and in cores."""

from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Compute the column anew, with all that tells two requests of one study apart."""
    op.execute("ALTER TABLE study DROP COLUMN wants")
    op.execute(
        """
        ALTER TABLE study ADD COLUMN wants TEXT GENERATED ALWAYS AS (
            CASE WHEN (standing ->> 'wants_slots')::integer > 0 THEN (standing ->> 'wants_slots') || ' ' ||
                coalesce(standing ->> 'wants_milli', '') || ' ' || coalesce(standing ->> 'wants_cores', '') || ' ' ||
                coalesce((standing -> 'avoided')::text, '') || (spec ->> 'resources') END
        ) STORED
        """
    )
