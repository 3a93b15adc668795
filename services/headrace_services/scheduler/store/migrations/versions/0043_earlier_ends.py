"""What trials had come to before they were let continue, and where their schedules end."""

from alembic import op

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    """Trials of before have no earlier ends on record. A replica of before would not keep one that it reopens."""
    op.execute(
        "ALTER TABLE trial ADD COLUMN earlier_ends JSONB NOT NULL DEFAULT '[]',"
        " ADD COLUMN counted_end INTEGER,"
        " ADD COLUMN schedules JSONB NOT NULL DEFAULT '[]',"
        " ADD CONSTRAINT trial_counted_end CHECK"
        " (counted_end IS NULL OR counted_end BETWEEN 0 AND jsonb_array_length(earlier_ends) - 1)"
    )
