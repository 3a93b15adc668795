"""The metrics of the report that counts, where that is a trial's best one."""

from alembic import op

revision = "0054"
down_revision = "0053"
# A replica of before would leave them as they are when a better report arrives.


def upgrade() -> None:
    """Trials of before get theirs from their reports, and so do their earlier ends. Several objectives are those of the
    last report, and so is the score of such a trial from now on."""
    for statement in _STATEMENTS:
        op.execute(statement)


_STATEMENTS = (
    "ALTER TABLE trial ADD COLUMN best_metrics JSONB NOT NULL DEFAULT '{}'",
    """
    UPDATE trial
    SET best_metrics = coalesce((
        SELECT report.metrics FROM report
        WHERE report.study_id = trial.study_id AND report.number = trial.number AND report.step = trial.best_step
            AND CAST(report.metrics ->> (study.spec #>> '{objective,metric}') AS double precision) = trial.best_value
        ORDER BY report.attempt, report.sequence
        LIMIT 1
    ), '{}')
    FROM study
    WHERE study.id = trial.study_id AND trial.best_value IS NOT NULL
        AND study.spec #>> '{objective,scope}' = 'best' AND study.spec #>> '{further_objectives,0}' IS NULL
    """,
    """
    UPDATE trial
    SET earlier_ends = (
        SELECT jsonb_agg(jsonb_set(one, '{metrics}', coalesce(read.metrics, one -> 'metrics')) ORDER BY place)
        FROM jsonb_array_elements(trial.earlier_ends) WITH ORDINALITY AS ends (one, place)
        LEFT JOIN LATERAL (
            SELECT (
                SELECT jsonb_object_agg(told.key, told.value) FROM jsonb_each(report.metrics) AS told
                WHERE told.key = study.spec #>> '{objective,metric}' OR told.key IN (
                    SELECT bound ->> 'metric' FROM json_array_elements(study.spec -> 'constraints') AS bound
                )
            ) AS metrics
            FROM report
            WHERE report.study_id = trial.study_id AND report.number = trial.number
                AND report.step = CAST(one ->> 'score_step' AS bigint)
                AND CAST(report.metrics ->> (study.spec #>> '{objective,metric}') AS double precision)
                    = CAST(one ->> 'score' AS double precision)
            ORDER BY report.attempt, report.sequence
            LIMIT 1
        ) AS read ON true
    )
    FROM study
    WHERE study.id = trial.study_id AND trial.earlier_ends <> '[]'
        AND study.spec #>> '{objective,scope}' = 'best' AND study.spec #>> '{further_objectives,0}' IS NULL
    """,
    """
    UPDATE trial
    SET score = CASE WHEN value NOT IN ('NaN', 'Infinity', '-Infinity') AND NOT EXISTS (
        SELECT FROM json_array_elements(study.spec -> 'constraints') AS bound,
            CAST(metrics ->> (bound ->> 'metric') AS double precision) AS told
        WHERE told IS NULL OR told = 'NaN'
            OR told > CAST(bound ->> 'at_most' AS double precision)
            OR told < CAST(bound ->> 'at_least' AS double precision)
    ) THEN value END
    FROM study
    WHERE study.id = trial.study_id AND earlier_ends = '[]'
        AND study.spec #>> '{objective,scope}' = 'best' AND study.spec #>> '{further_objectives,0}' IS NOT NULL
    """,
)
