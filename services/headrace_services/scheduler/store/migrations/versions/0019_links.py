"""How the devices of a worker are joined: NVLink, a PCIe switch, a NUMA node."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Of workers that have not said so it is unknown."""
    op.execute("ALTER TABLE slot ADD COLUMN links INTEGER[] NOT NULL DEFAULT '{}'")
