"""The value of a trial that counts, by the objective's scope; and trials whose checkpoint is gone."""

import json

from alembic import op
from sqlalchemy import text

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """In studies of before the best value counts, and their specs say so from now on."""
    op.execute(
        "ALTER TABLE trial ADD COLUMN score DOUBLE PRECISION,"
        " ADD COLUMN recent DOUBLE PRECISION[] NOT NULL DEFAULT '{}',"
        " ADD COLUMN checkpoint_missing BOOLEAN NOT NULL DEFAULT false"
    )
    op.execute("UPDATE trial SET score = best_value WHERE best_value IS NOT NULL")
    op.execute("DROP INDEX trial_best")
    op.execute("CREATE INDEX trial_score ON trial (study_id, score) WHERE score IS NOT NULL")
    _say_best()
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


def _say_best() -> None:
    """Writes the scope into the specs, and leaves all else as it is: by way of JSONB 1e16 would become an
    integer. A spec that is none stays as it is, and a Pareto front needs no scope."""
    connection = op.get_bind()
    for (study,) in connection.execute(text("SELECT id FROM study ORDER BY id")).all():
        row = connection.execute(text("SELECT spec::text FROM study WHERE id = :id"), {"id": study})
        spec = json.loads(row.scalar_one())
        objective = spec.get("objective") if isinstance(spec, dict) else None
        if isinstance(objective, dict) and not objective.get("scope") and not spec.get("further_objectives"):
            objective["scope"] = "best"
            connection.execute(
                text("UPDATE study SET spec = CAST(:spec AS json) WHERE id = :id"),
                {"id": study, "spec": json.dumps(spec)},
            )
