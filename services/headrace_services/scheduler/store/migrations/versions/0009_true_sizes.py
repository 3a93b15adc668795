"""Large JSON is stored as it is, not compressed: a page that is bounded by stored sizes is bounded in memory too."""

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Let later rows keep their size; what is stored already stays compressed."""
    for table, column in (
        ("study", "spec"),
        ("trial", "metrics"),
        ("report", "metrics"),
        ("event", "detail"),
    ):
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE EXTERNAL")
