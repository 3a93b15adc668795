"""Past studies, inserted with SQL: ended, with trials, attempts, reports, rungs and events."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import StudySpec

ENDED_S = "clock_timestamp() - make_interval(secs => :ago_s)"
_SCRIPT = """
INSERT INTO trial (study_id, number, state, params, attempt, step, rungs, value, best_value, best_step, score,
    metrics, reason, end_time, end_cursor, checkpoint)
  SELECT :study, n, 'TERMINATED', json_build_object('x', n), 1, :reports, 1, n, n, :reports, n,
    jsonb_build_object('loss', 1), 'COMPLETED', clock_timestamp(), n,
    jsonb_build_object('step', CAST(:reports AS bigint), 'uri', 'file:///s/studies/'
      || (SELECT name || '-' || uid FROM study WHERE id = :study) || '/trials/' || n || '/c')
  FROM generate_series(0, :trials - 1) n;
INSERT INTO slot_grant (id, study_id, slot_count, live, end_time)
  SELECT :study || '.' || n || '.1', :study, 1, false, clock_timestamp() FROM generate_series(0, :trials - 1) n;
INSERT INTO grant_part (grant_id, worker_id, incarnation, slots)
  SELECT :study || '.' || n || '.1', :worker, 'i', '{0}' FROM generate_series(0, :trials - 1) n;
INSERT INTO lease (id, study_id, number, attempt, grant_id, worker_id, live, end_time)
  SELECT :study || '.' || n || '.1', :study, n, 1, :study || '.' || n || '.1', :worker, false, clock_timestamp()
  FROM generate_series(0, :trials - 1) n;
INSERT INTO report (study_id, number, attempt, sequence, step, metrics, action, next_milestone)
  SELECT :study, n, 1, q, q, jsonb_build_object('loss', 1), 'CONTINUE', 9
  FROM generate_series(0, :trials - 1) n, generate_series(1, :reports) q;
INSERT INTO rung_result (study_id, number, rung, bracket, milestone, step, value, arrival, cursor)
  SELECT :study, n, 0, 0, 1, 1, n, n, n + 1 FROM generate_series(0, :trials - 1) n;
INSERT INTO event (study_id, cursor, number, kind, message, detail)
  SELECT :study, 1 + :events * n + q, n, 'trial_moved', 'a sentence that tells what happened',
    jsonb_build_object('a', 1) FROM generate_series(0, :trials - 1) n, generate_series(1, :events) q;
INSERT INTO event (study_id, cursor, kind, message, detail)
  VALUES (:study, 2 + :events * :trials, 'study_moved', 'it completed', '{}');
"""
_STATEMENTS = [statement for statement in _SCRIPT.split(";\n") if statement.strip()]


async def past_study(
    conn: AsyncConnection,
    name: str,
    spec: StudySpec,
    *,
    ago_s: float,
    trials: int = 3,
    reports: int = 5,
    events: int = 10,
    worker: int | None = None,
) -> int:
    """Insert a study that completed `ago_s` seconds ago and return its id. Each trial has one rung, at step 1."""
    if worker is None:
        found = await conn.execute(
            text(
                "INSERT INTO worker (name, incarnation) VALUES ('past', 'i')"
                " ON CONFLICT (name) DO UPDATE SET incarnation = 'i' RETURNING id"
            )
        )
        worker = found.scalar_one()
    made = await conn.execute(
        text(
            "INSERT INTO study (name, uid, state, spec, planned, next_number, cursor, create_time, end_time)"
            f" VALUES (:name, substr(md5(random()::text), 1, 12), 'COMPLETED', CAST(:spec AS json), :trials, :trials,"
            f" 2 + :trials * :events, {ENDED_S}, {ENDED_S}) RETURNING id"
        ),
        {"name": name, "spec": spec.model_dump_json(), "trials": trials, "events": events, "ago_s": ago_s},
    )
    study = int(made.scalar_one())
    values = {"study": study, "trials": trials, "reports": reports, "events": events, "worker": worker}
    # Past rows are inserted without triggers. (Only superusers may disable them.)
    await conn.exec_driver_sql("SET LOCAL session_replication_role = replica")
    for statement in _STATEMENTS:
        for key, value in values.items():
            statement = statement.replace(f":{key}", str(value))  # our own numbers, of plain types
        await conn.exec_driver_sql(statement)
    await conn.exec_driver_sql("SET LOCAL session_replication_role = origin")
    return study


async def count(conn: AsyncConnection, table: str, study: int) -> int:
    """Return how many rows of a study a table has."""
    key = "id" if table == "study" else "study_id"
    query = text(f"SELECT count(*) FROM {table} WHERE {key} = :study")
    return int((await conn.execute(query, {"study": study})).scalar_one())
