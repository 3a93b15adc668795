"""How much code a project may have."""

from alembic import op

revision = "0051"
down_revision = "0050"


def upgrade() -> None:
    """A replica of before knows no such limit, and takes more."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    "ALTER TABLE project ADD COLUMN code_mib INTEGER",
    "ALTER TABLE project ADD CONSTRAINT project_code_mib CHECK (code_mib >= 0)",
)
