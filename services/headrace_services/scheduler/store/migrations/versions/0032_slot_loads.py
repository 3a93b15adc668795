"""How busy devices were in the last hour."""

from alembic import op

revision = "0032"
down_revision = "0030"


def upgrade() -> None:
    """Nothing was kept before."""
    op.execute(
        """
        CREATE TABLE slot_load (
            worker_id BIGINT NOT NULL CONSTRAINT slot_load_worker_id_fk REFERENCES worker (id) ON DELETE CASCADE,
            index INTEGER NOT NULL,
            place INTEGER NOT NULL CONSTRAINT slot_load_place CHECK (place BETWEEN 0 AND 59),
            minute TIMESTAMPTZ NOT NULL,
            samples INTEGER NOT NULL CONSTRAINT slot_load_samples CHECK (samples >= 1),
            utilization DOUBLE PRECISION NOT NULL,
            memory_used_bytes BIGINT NOT NULL,
            CONSTRAINT slot_load_pk PRIMARY KEY (worker_id, index, place)
        )
        """
    )
