"""Evolutionary samplers: the generation that a trial was proposed for."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column."""
    op.execute(
        """
        ALTER TABLE trial
            ADD COLUMN generation INTEGER,
            ADD CONSTRAINT trial_generation CHECK (generation >= 0)
        """
    )
