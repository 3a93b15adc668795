"""The full budget of a trial's last attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

LAST_TOLD = """
UPDATE trial SET budget = lease.budget FROM lease
WHERE lease.study_id = trial.study_id AND lease.number = trial.number AND lease.attempt = trial.attempt
"""


def upgrade() -> None:
    """Add the column, with what the last attempts were told."""
    op.add_column("trial", sa.Column("budget", sa.BigInteger))
    op.execute(LAST_TOLD)
