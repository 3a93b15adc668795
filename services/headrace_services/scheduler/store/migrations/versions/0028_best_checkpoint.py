"""The checkpoint of a trial's best value, where the study keeps it."""

from alembic import op

revision = "0028"
down_revision = "0026"


def upgrade() -> None:
    """Trials of before have none: their studies keep the last ones."""
    op.execute("ALTER TABLE trial ADD COLUMN best_checkpoint JSONB")
    op.execute(
        "ALTER TABLE trial ADD CONSTRAINT trial_best_checkpoint"
        " CHECK (best_checkpoint IS NULL OR best_value IS NOT NULL)"
    )
