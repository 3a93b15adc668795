"""Projects: the names of studies and the ids of requests are their own within one; quotas."""

from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    """What there is belongs to the project `default`, which has no quota."""
    op.execute(
        "CREATE TABLE project ("
        " name TEXT CONSTRAINT project_pk PRIMARY KEY,"
        " slots INTEGER CONSTRAINT project_slots CHECK (slots >= 0),"
        " studies INTEGER CONSTRAINT project_studies CHECK (studies >= 0),"
        " create_time TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT clock_timestamp())"
    )
    op.execute("INSERT INTO project (name) VALUES ('default')")
    op.execute(
        "ALTER TABLE study ADD COLUMN project TEXT NOT NULL DEFAULT 'default',"
        " ADD CONSTRAINT study_project_fk FOREIGN KEY (project) REFERENCES project (name),"
        " DROP CONSTRAINT study_name_uq,"
        " ADD CONSTRAINT study_project_name_uq UNIQUE (project, name),"
        " ADD COLUMN held_off INTEGER"
        " GENERATED ALWAYS AS (coalesce((standing ->> 'held_off')::integer, 0)) STORED"
    )
    op.execute("CREATE INDEX study_project ON study (project, id)")
    op.execute("CREATE INDEX study_unended ON study (project) WHERE end_time IS NULL")
    op.execute(
        "ALTER TABLE request ADD COLUMN project TEXT NOT NULL DEFAULT 'default',"
        " DROP CONSTRAINT request_pk,"
        " ADD CONSTRAINT request_pk PRIMARY KEY (project, request_id)"
    )
