"""Studies that were stored before objectives had a scope: the best value counts in them, and else nothing changes."""

import json
from typing import Any

import psycopg
from alembic import command
from sqlalchemy import Connection, make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import Scope, StudySpec, parse_spec
from headrace_services.scheduler.store.database import open_engine
from headrace_services.scheduler.store.migrate import alembic_config


async def upgrade(conn: AsyncConnection, revision: str) -> None:
    def run(connection: Connection) -> None:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    await conn.run_sync(run)


def before(**more: Any) -> dict[str, Any]:
    """What was stored of a study: its objectives say nothing of a scope."""
    spec = parse_spec(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "categorical", "values": [1e16, 0.00001, 3]}},
            "policy": "run_all",
            "trials": 3,
            "steps": 9,
            **more,
        }
    )
    columns = spec.model_dump(mode="json")
    for objective in (columns["objective"], *columns["further_objectives"]):
        del objective["scope"], objective["k"]
    return columns


async def test_the_best_value_counts_in_them_and_nothing_else_changes(postgres_url: str) -> None:
    specs = {
        "one": before(),
        "keeps": before(objective={"metric": "loss", "goal": "maximize", "keep": "best"}),
        "several": before(further_objectives=[{"metric": "size", "goal": "minimize"}]),
        "none": [],
    }
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS scopes")
        conn.execute("CREATE DATABASE scopes")
    url = make_url(postgres_url).set(database="scopes").render_as_string(hide_password=False)
    engine = open_engine(url)
    async with engine.begin() as conn:
        await upgrade(conn, "0032")
    with psycopg.connect(url, autocommit=True) as conn:
        for name, spec in specs.items():
            conn.execute(
                "INSERT INTO study (name, uid, state, spec) VALUES (%s, %s, 'ACTIVE', %s::json)",
                (name, name, json.dumps(spec)),
            )
        conn.execute(
            "INSERT INTO trial (study_id, number, state, params, value, best_value, best_step, step)"
            " SELECT id, 0, 'PENDING', '{}', 0.5, 0.25, 3, 9 FROM study"
        )
    async with engine.begin() as conn:
        await upgrade(conn, "head")
    await engine.dispose()
    with psycopg.connect(url) as conn:
        found = {
            name: json.loads(spec)
            for name, spec in conn.execute("SELECT name, spec::text FROM study ORDER BY id")
        }
        scores = conn.execute("SELECT DISTINCT score, recent, unread FROM trial").fetchall()
    assert scores == [(0.25, [], None)]
    for name in ("one", "keeps"):
        assert found[name]["objective"].pop("scope") == "best"
    assert json.dumps(found) == json.dumps(specs), "1e16 stays a float, and the order of keys stays"
    stored = {"objective": specs["one"]["objective"] | {"scope": "best"}}
    assert StudySpec.stored(specs["one"] | stored).objective.scope is Scope.BEST
    assert StudySpec.stored(specs["several"]).further_objectives
