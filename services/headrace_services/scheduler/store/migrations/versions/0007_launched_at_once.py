"""A trial that is launched in the step that creates it is inserted as it is then: nobody has seen it pending."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Let a trial begin RUNNING; what leads where after that stays as it is."""
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
            IF TG_OP = 'UPDATE' AND NEW.epoch < OLD.epoch THEN
                RAISE EXCEPTION 'an epoch never goes back' USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END
        $$
        """
    )
