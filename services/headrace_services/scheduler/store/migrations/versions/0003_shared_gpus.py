"""How a worker's trials share its GPUs, which trials were there when that failed, and devices that nobody can share or
whose utilization nobody knows."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("worker", sa.Column("mps", sa.Text, nullable=False, server_default=""))
    op.add_column("trial", sa.Column("shared_faults", sa.Integer, nullable=False, server_default="0"))
    op.add_column("slot", sa.Column("unshared", sa.Boolean, nullable=False, server_default="false"))
    op.alter_column("slot_load", "utilization", nullable=True)
