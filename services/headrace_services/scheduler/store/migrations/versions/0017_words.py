"""Columns by plain names."""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Rename them, in events too; indexes and conditions follow, the function of the triggers does not."""
    op.execute("ALTER TABLE trial RENAME COLUMN held TO user_paused")
    for table in ("trial", "lease", "report"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN epoch TO attempt")
    op.execute("ALTER TABLE lease RENAME CONSTRAINT lease_epoch TO lease_attempt")
    op.execute(
        "ALTER TABLE lease RENAME CONSTRAINT lease_study_id_number_epoch_uq TO lease_study_id_number_attempt_uq"
    )
    op.execute(
        "UPDATE event SET detail = (detail - 'epoch') || jsonb_build_object('attempt', detail -> 'epoch')"
        " WHERE kind IN ('trial_moved', 'report_recorded') AND detail ? 'epoch'"
    )
    op.execute(
        """
        CREATE OR REPLACE FUNCTION trial_transition() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'INSERT' THEN
                IF NEW.state NOT IN ('PENDING', 'RUNNING') THEN
                    RAISE EXCEPTION 'a trial begins PENDING, or launched, not %', NEW.state
                        USING ERRCODE = 'check_violation';
                END IF;
            ELSIF OLD.state <> NEW.state AND (OLD.state, NEW.state) NOT IN (
                ('PENDING', 'RUNNING'), ('PENDING', 'TERMINATED'),
                ('RUNNING', 'PAUSED'), ('RUNNING', 'PENDING'), ('RUNNING', 'TERMINATED'),
                ('PAUSED', 'RESUMED'), ('PAUSED', 'TERMINATED'),
                ('RESUMED', 'RUNNING'), ('RESUMED', 'PAUSED'), ('RESUMED', 'TERMINATED')
            ) THEN
                RAISE EXCEPTION 'no transition leads from % to %', OLD.state, NEW.state
                    USING ERRCODE = 'check_violation';
            END IF;
            IF TG_OP = 'UPDATE' AND NEW.attempt < OLD.attempt THEN
                RAISE EXCEPTION 'an attempt never goes back' USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END
        $$
        """
    )
