"""What code the attempts of a study ran, and the trials that ran other code than their study began with."""

from alembic import op

revision = "0044"
down_revision = "0043"
# A replica of before records no code: its trials are not marked.
min_compatible = "0040"


def upgrade() -> None:
    """Of attempts of before nothing is known: the first attempt from now on has the study's first code."""
    op.execute("ALTER TABLE study ADD COLUMN code_files JSON NOT NULL DEFAULT '{}'")
    op.execute(
        "ALTER TABLE trial ADD COLUMN code TEXT NOT NULL DEFAULT '',"
        " ADD COLUMN code_changed TEXT[] NOT NULL DEFAULT '{}'"
    )
