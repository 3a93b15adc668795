"""The full budget that an attempt was told, and studies that end with time."""

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Attempts of before were told the first budget of their study."""
    op.execute("ALTER TABLE lease ADD COLUMN budget BIGINT")
    op.execute(
        "CREATE INDEX study_timed ON study (id)"
        " WHERE state IN ('ACTIVE', 'PAUSED') AND spec #>> '{until,hours}' IS NOT NULL"
    )
