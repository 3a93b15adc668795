"""Grants with several seats, of which the leases share a process; and what is asked of a grant is asked as a whole."""

from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Every grant so far has one seat."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    """
    ALTER TABLE slot_grant
        ADD COLUMN seats INTEGER NOT NULL DEFAULT 1,
        ADD COLUMN key TEXT NOT NULL DEFAULT '',
        ADD COLUMN closed BOOLEAN NOT NULL DEFAULT false,
        ADD CONSTRAINT slot_grant_seats CHECK (seats = 1 OR (seats > 1 AND slot_count = 1)),
        ADD CONSTRAINT slot_grant_closed CHECK (NOT closed OR seats > 1)
    """,
    "CREATE INDEX slot_grant_open ON slot_grant (study_id) WHERE live AND seats > 1 AND NOT closed",
    """
    CREATE FUNCTION lease_has_a_seat() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT count(*) FROM lease WHERE grant_id = NEW.grant_id AND live)
            > (SELECT seats FROM slot_grant WHERE id = NEW.grant_id)
        THEN
            RAISE EXCEPTION 'grant % has no seat for lease %', NEW.grant_id, NEW.id
                USING ERRCODE = 'check_violation';
        END IF;
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER lease_begins AFTER INSERT ON lease FOR EACH ROW
        WHEN (NEW.grant_id IS NOT NULL AND NEW.live) EXECUTE FUNCTION lease_has_a_seat()
    """,
    "ALTER TABLE leave ADD COLUMN grant_id TEXT",
    "UPDATE leave SET grant_id = lease.grant_id FROM lease WHERE lease.id = leave.lease_id",
    "DELETE FROM leave WHERE grant_id IS NULL",
    "ALTER TABLE leave DROP COLUMN lease_id",
    """
    ALTER TABLE leave
        ADD CONSTRAINT leave_pk PRIMARY KEY (grant_id),
        ADD CONSTRAINT leave_grant_id_fk FOREIGN KEY (grant_id) REFERENCES slot_grant (id) ON DELETE CASCADE
    """,
)
