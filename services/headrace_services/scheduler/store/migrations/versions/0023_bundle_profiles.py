"""What a study knows of its bundles: how many trials share a process on a kind of device."""

from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Nothing was measured before."""
    op.execute(
        """
        CREATE TABLE bundle_profile (
            study_id BIGINT NOT NULL CONSTRAINT bundle_profile_study_id_fk REFERENCES study (id) ON DELETE CASCADE,
            device TEXT NOT NULL,
            digest TEXT NOT NULL,
            key TEXT NOT NULL,
            steady JSONB NOT NULL DEFAULT '{}',
            fresh JSONB NOT NULL DEFAULT '{}',
            most INTEGER CONSTRAINT bundle_profile_most CHECK (most >= 1),
            time TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
            CONSTRAINT bundle_profile_pk PRIMARY KEY (study_id, device, digest)
        )
        """
    )
    op.execute("CREATE INDEX bundle_profile_time ON bundle_profile (study_id, time)")
