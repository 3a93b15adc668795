"""A client may take up a lease that lapsed; hours count while trials run."""

from alembic import op

revision = "0045"
down_revision = "0044"
# A replica of before would count hours from a study's creation, and cannot read what is counted here.


def upgrade() -> None:
    """No lease has lapsed yet: those that ended so far are over for good."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    """
    ALTER TABLE trial
        ADD COLUMN lapsed BOOLEAN NOT NULL DEFAULT false,
        ADD CONSTRAINT trial_lapsed CHECK (NOT lapsed OR state IN ('PENDING', 'PAUSED'))
    """,
    """
    ALTER TABLE lease
        ADD COLUMN ended TEXT NOT NULL DEFAULT '',
        ADD CONSTRAINT lease_ended CHECK (NOT live OR ended = '')
    """,
    # A trial comes back to RUNNING in the attempt that it had only where that was a client's, and lapsed.
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
            ('PAUSED', 'RESUMED'), ('PAUSED', 'RUNNING'), ('PAUSED', 'TERMINATED'),
            ('RESUMED', 'RUNNING'), ('RESUMED', 'PAUSED'), ('RESUMED', 'PENDING'), ('RESUMED', 'TERMINATED'),
            ('TERMINATED', 'PAUSED'), ('TERMINATED', 'PENDING')
        ) THEN
            RAISE EXCEPTION 'no transition leads from % to %', OLD.state, NEW.state
                USING ERRCODE = 'check_violation';
        END IF;
        IF TG_OP = 'UPDATE' AND NEW.attempt < OLD.attempt THEN
            RAISE EXCEPTION 'an attempt never goes back' USING ERRCODE = 'check_violation';
        END IF;
        IF TG_OP = 'UPDATE' AND OLD.state IN ('PENDING', 'PAUSED') AND NEW.state IN ('RUNNING', 'RESUMED')
            AND NEW.attempt = OLD.attempt AND NOT OLD.lapsed
        THEN
            RAISE EXCEPTION 'an attempt begins once' USING ERRCODE = 'check_violation';
        END IF;
        IF TG_OP = 'UPDATE' AND OLD.lapsed AND OLD.state <> NEW.state THEN
            NEW.lapsed := false;
        END IF;
        RETURN NEW;
    END
    $$
    """,
    """
    CREATE FUNCTION lease_comes_back() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.worker_id IS NOT NULL OR OLD.ended <> 'lapse' THEN
            RAISE EXCEPTION 'lease % is over for good', NEW.id USING ERRCODE = 'check_violation';
        END IF;
        RETURN NEW;
    END
    $$
    """,
    """
    CREATE TRIGGER lease_comes_back BEFORE UPDATE ON lease FOR EACH ROW
        WHEN (NEW.live AND NOT OLD.live) EXECUTE FUNCTION lease_comes_back()
    """,
    # Of studies whose hours count: as before since their beginning, but not before the first start of a trial.
    """
    UPDATE study SET standing = jsonb_set(standing, '{progress}', (standing -> 'progress') || (
        SELECT CASE WHEN runs
            THEN jsonb_build_object('spent_s', 0, 'since_s', now_s - used_s, 'seen_s', now_s)
            ELSE jsonb_build_object('spent_s', used_s, 'since_s', NULL, 'seen_s', now_s) END
        FROM (
            SELECT now_s, EXISTS (SELECT FROM lease WHERE lease.study_id = study.id AND lease.live) AS runs,
                CASE WHEN first_s IS NULL THEN 0 ELSE greatest(0, now_s - greatest(first_s, coalesce(
                    (standing #>> '{progress,began_s}')::double precision, extract(epoch FROM create_time)
                ))) END::double precision AS used_s
            FROM (
                SELECT extract(epoch FROM clock_timestamp())::double precision AS now_s, (
                    SELECT extract(epoch FROM min(start_time)) FROM trial WHERE trial.study_id = study.id
                )::double precision AS first_s
            ) AS known
        ) AS counted
    ))
    WHERE end_time IS NULL AND spec #>> '{until,hours}' IS NOT NULL AND standing -> 'progress' IS NOT NULL
    """,
    "UPDATE study SET standing = standing #- '{progress,began_s}' WHERE standing #> '{progress,began_s}' IS NOT NULL",
)
