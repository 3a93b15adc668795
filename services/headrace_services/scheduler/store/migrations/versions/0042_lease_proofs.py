"""The secret by which leases are proved."""

from alembic import op

revision = "0042"
down_revision = "0041"
# A replica of before gives leases without a proof, and believes what workers hold as it did.
min_compatible = "0040"


def upgrade() -> None:
    """Random: each UUID has 122 random bits."""
    op.execute(
        "ALTER TABLE lineage ADD COLUMN secret BYTEA NOT NULL"
        " DEFAULT uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())"
    )
