"""The full budget of a trial's last attempt."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the column."""
    op.add_column("trial", sa.Column("budget", sa.BigInteger))
