"""Which projects shipped a code."""

from alembic import op

revision = "0041"
down_revision = "0040"
# A replica of before notes no project. A project whose code came through it ships that code once more.
min_compatible = "0040"


def upgrade() -> None:
    """A project has the code of its studies."""
    op.execute(
        "CREATE TABLE code_project ("
        " digest TEXT NOT NULL CONSTRAINT code_project_digest_fk REFERENCES code (digest) ON DELETE CASCADE,"
        " project TEXT NOT NULL,"
        " CONSTRAINT code_project_pk PRIMARY KEY (digest, project))"
    )
    op.execute(
        "INSERT INTO code_project (digest, project)"
        " SELECT DISTINCT code.digest, study.project FROM study JOIN code ON code.digest = study.code"
    )
