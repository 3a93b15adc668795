"""Indexes by which deletions find who refers to a row, and a sampler's model the report of a rung."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the indexes."""
    op.execute("CREATE INDEX slot_lease ON slot (lease_id) WHERE lease_id IS NOT NULL")
    op.execute("CREATE INDEX lease_worker ON lease (worker_id) WHERE worker_id IS NOT NULL")
    op.execute("CREATE INDEX exploit_donor ON exploit (study_id, donor, rung)")
    op.execute("CREATE INDEX worker_away ON worker (last_seen) WHERE NOT connected")
    op.execute("CREATE INDEX report_step ON report (study_id, number, step)")
