"""The value of a trial that counts, by the objective's scope; and trials whose checkpoint is gone."""

from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """In studies of before the best value counts, and their specs say so from now on."""
    op.execute(
        "ALTER TABLE trial ADD COLUMN score DOUBLE PRECISION,"
        " ADD COLUMN recent DOUBLE PRECISION[] NOT NULL DEFAULT '{}'"
    )
    op.execute("UPDATE trial SET score = best_value WHERE best_value IS NOT NULL")
    op.execute("DROP INDEX trial_best")
    op.execute("CREATE INDEX trial_score ON trial (study_id, score) WHERE score IS NOT NULL")
    op.execute(
        "UPDATE study SET spec = jsonb_set(spec::jsonb, '{objective,scope}', '\"best\"')::json"
        " WHERE json_typeof(spec -> 'objective') = 'object' AND spec #> '{objective,scope}' IS NULL"
        " AND coalesce((spec -> 'further_objectives')::jsonb, '[]') = '[]'"
    )
    # A trial that was to go on from a checkpoint which is gone begins anew: RESUMED leads to PENDING.
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
                ('RESUMED', 'RUNNING'), ('RESUMED', 'PAUSED'), ('RESUMED', 'PENDING'), ('RESUMED', 'TERMINATED'),
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
