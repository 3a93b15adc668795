"""What a worker says about processes that run several trials."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column."""
    op.add_column("worker", sa.Column("reused", sa.Text, nullable=False, server_default=""))
