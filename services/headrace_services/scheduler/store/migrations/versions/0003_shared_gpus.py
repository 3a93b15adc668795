"""How a worker's trials share its GPUs, which trials were there when that failed, devices that nobody can share or
whose utilization nobody knows, and the steps of the values whose mean counts."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("worker", sa.Column("mps", sa.Text, nullable=False, server_default=""))
    op.add_column("trial", sa.Column("shared_faults", sa.Integer, nullable=False, server_default="0"))
    for name, kind in (("recent_steps", sa.Integer), ("repeated", sa.Float), ("repeated_steps", sa.Integer)):
        op.add_column("trial", sa.Column(name, sa.ARRAY(kind), nullable=False, server_default="{}"))
    op.add_column("slot", sa.Column("unshared", sa.Boolean, nullable=False, server_default="false"))
    op.alter_column("slot_load", "utilization", nullable=True)
