"""The schema of the first release, 0.1.0."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create everything."""
    op.execute(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").replace(":", r"\:"))
