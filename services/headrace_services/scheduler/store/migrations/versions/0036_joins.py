"""Join tokens, and which workers have joined with a certificate."""

from alembic import op

revision = "0036"
down_revision = "0035"


def upgrade() -> None:
    """Before it no worker had a certificate."""
    op.execute(
        """
        CREATE TABLE join_token (
            id TEXT CONSTRAINT join_token_pk PRIMARY KEY,
            digest BYTEA NOT NULL,
            worker TEXT NOT NULL DEFAULT '',
            uses INTEGER NOT NULL DEFAULT 1,
            used INTEGER NOT NULL DEFAULT 0,
            create_time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
            expire_time TIMESTAMPTZ NOT NULL,
            revoke_time TIMESTAMPTZ,
            CONSTRAINT join_token_uses CHECK (used BETWEEN 0 AND uses)
        )
        """
    )
    op.execute("CREATE INDEX join_token_expire ON join_token (expire_time)")
    op.execute(
        """
        CREATE TABLE joined_worker (
            worker TEXT CONSTRAINT joined_worker_pk PRIMARY KEY,
            token_id TEXT NOT NULL,
            key_digest BYTEA NOT NULL,
            join_time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
            certificate_until TIMESTAMPTZ NOT NULL,
            revoke_time TIMESTAMPTZ
        )
        """
    )
    op.execute("CREATE INDEX joined_worker_until ON joined_worker (certificate_until)")
    op.execute("ALTER TABLE worker ADD COLUMN certificate_until TIMESTAMPTZ")
