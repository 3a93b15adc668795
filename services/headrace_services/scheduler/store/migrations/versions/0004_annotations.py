"""Tags and notes of studies and trials."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the columns."""
    for table in ("study", "trial"):
        op.add_column(table, sa.Column("tags", sa.ARRAY(sa.Text), nullable=False, server_default="{}"))
        op.add_column(table, sa.Column("note", sa.Text, nullable=False, server_default=""))
