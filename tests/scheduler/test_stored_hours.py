"""Studies with hours that were stored before hours counted while trials run."""

import json

import psycopg
import pytest
from sqlalchemy import make_url
from study_site import make_spec
from test_stored_before_scopes import upgrade

from headrace_services.scheduler.core.study_status import Progress, Standing
from headrace_services.scheduler.store import rows
from headrace_services.scheduler.store.database import open_engine

OLD = {"best_value": 0.5, "best_trial": 3, "tried": 2}


async def test_they_count_on_from_their_first_start(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS hours")
        conn.execute("CREATE DATABASE hours")
    url = make_url(postgres_url).set(database="hours").render_as_string(hide_password=False)
    engine = open_engine(url)
    async with engine.begin() as conn:
        await upgrade(conn, "0042")
    standing = rows.standing_columns(Standing())
    with psycopg.connect(url, autocommit=True) as conn:
        for name in ("waits", "runs", "stands", "extended", "untimed", "fresh"):
            until = None if name == "untimed" else {"hours": 2}
            began_s = conn.execute(
                "SELECT extract(epoch FROM now() - interval '10 minutes')::float8"
            ).fetchone()
            assert began_s is not None
            old = OLD | {"began_s": began_s[0] if name == "extended" else None}
            progress = {} if name == "fresh" else standing | {"progress": old}
            study = conn.execute(
                "INSERT INTO study (name, uid, state, spec, standing, create_time) VALUES"
                " (%s, %s, 'ACTIVE', %s::json, %s::jsonb, now() - interval '5 hours') RETURNING id",
                (name, name, make_spec(until=until).model_dump_json(), json.dumps(progress)),
            ).fetchone()
            assert study is not None
            runs = name in ("runs", "extended")
            started = None if name in ("waits", "fresh") else "30 minutes"
            conn.execute(
                "INSERT INTO trial (study_id, number, state, params, milestone, attempt, lease_id, start_time)"
                " VALUES (%s, 0, %s, '{}', 1, 1, %s, now() - %s::interval)",
                (study[0], "RUNNING" if runs else "PENDING", name if runs else None, started),
            )
            if runs:
                conn.execute(
                    "INSERT INTO lease (id, study_id, number, attempt, client_id, ttl_s, expires_at)"
                    " VALUES (%s, %s, 0, 1, 'c', 60, now())",
                    (name, study[0]),
                )
    async with engine.begin() as conn:
        await upgrade(conn, "head")
    await engine.dispose()
    with psycopg.connect(url) as conn:
        found = {
            name: rows.standing(columns).progress
            for name, columns in conn.execute("SELECT name, standing FROM study")
        }
    assert found.pop("fresh") == Progress()
    for name, minutes in {"waits": 0, "runs": 30, "stands": 30, "extended": 10, "untimed": 0}.items():
        progress = found[name]
        assert (progress.best_value, progress.best_trial, progress.tried) == (0.5, 3, 2)
        assert progress.spent_s + progress.running_s == pytest.approx(60 * minutes, abs=60), name
        assert (progress.since_s is not None) is (name in ("runs", "extended"))
