"""The code of studies, in chunks."""

from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    """Kept by digest; a chunk has at most 1 MiB."""
    op.execute(
        "CREATE TABLE code ("
        " digest TEXT CONSTRAINT code_pk PRIMARY KEY,"
        " size_bytes BIGINT NOT NULL,"
        " create_time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),"
        " use_time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),"
        " CONSTRAINT code_digest CHECK (digest ~ '^[0-9a-f]{64}$'))"
    )
    op.execute("CREATE INDEX code_used ON code (use_time)")
    op.execute(
        "CREATE TABLE code_chunk ("
        " digest TEXT NOT NULL CONSTRAINT code_chunk_digest_fk REFERENCES code (digest) ON DELETE CASCADE,"
        " number INTEGER NOT NULL,"
        " data BYTEA NOT NULL,"
        " CONSTRAINT code_chunk_pk PRIMARY KEY (digest, number),"
        " CONSTRAINT code_chunk_size CHECK (octet_length(data) BETWEEN 1 AND 1048576))"
    )
    # Which studies need a code; the spec is not read for it.
    op.execute("ALTER TABLE study ADD COLUMN code TEXT")
    op.execute("CREATE INDEX study_code ON study (code) WHERE code IS NOT NULL")
