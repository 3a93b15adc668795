"""Trials that are over may go on."""

from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """The rows of before are of revision 0."""
    op.execute("ALTER TABLE study ADD COLUMN revision BIGINT NOT NULL DEFAULT 0")
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
                ('RESUMED', 'RUNNING'), ('RESUMED', 'PAUSED'), ('RESUMED', 'TERMINATED'),
                ('TERMINATED', 'PAUSED'), ('TERMINATED', 'PENDING')
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
