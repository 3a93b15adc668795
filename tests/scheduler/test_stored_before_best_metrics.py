"""Trials that were stored before the metrics of their best reports were: these come from the stored reports."""

import json
from typing import Any

import psycopg
from sqlalchemy import make_url
from test_stored_before_scopes import upgrade

from headrace.spec import parse_spec
from headrace_services.scheduler.store.database import open_engine

REPORTS = [  # of one trial: attempt, step, metrics
    (1, 1, {"loss": 0.6, "size": 0.9, "other": 1}),
    (1, 2, {"loss": 0.4, "size": "NaN", "other": 2}),
    (2, 2, {"loss": 0.5, "size": 0.8, "other": 3}),
    (2, 3, {"loss": 0.7, "size": 0.1, "other": 4}),
]
LAST = REPORTS[-1][2]
END = {
    "reason": "COMPLETED",
    "step": 3,
    "budget": 3,
    "score": 0.5,
    "score_step": 2,
    "metrics": {"loss": 0.7, "size": 0.1},
    "checkpoint": None,
    "cursor": 1,
}


def stored(scope: str, **more: Any) -> str:
    spec = parse_spec(
        {
            "objective": {"metric": "loss", "goal": "minimize", "scope": scope},
            "constraints": [{"metric": "size", "at_least": 0.3}],
            "space": {"x": {"type": "float", "low": 0, "high": 1}},
            "policy": "run_all",
            "trials": 1,
            "steps": 3,
            **more,
        }
    )
    return spec.model_dump_json()


async def test_best_metrics_come_from_the_reports(postgres_url: str) -> None:
    several = {
        "objective": {"metric": "loss", "goal": "minimize", "keep": "best"},
        "further_objectives": [{"metric": "size", "goal": "maximize"}],
    }
    specs = {
        "best": stored("best"),
        "last": stored("last"),
        "several": stored("best", **several, constraints=[]),
        "misses": stored("best", **several),
        "none": "[]",
    }
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS best_metrics")
        conn.execute("CREATE DATABASE best_metrics")
    url = make_url(postgres_url).set(database="best_metrics").render_as_string(hide_password=False)
    engine = open_engine(url)
    async with engine.begin() as conn:
        await upgrade(conn, "0052")
    with psycopg.connect(url, autocommit=True) as conn:
        for name, spec in specs.items():
            conn.execute(
                "INSERT INTO study (name, uid, state, spec) VALUES (%s, %s, 'ACTIVE', %s::json)",
                (name, name, spec),
            )
        conn.execute(
            "INSERT INTO trial"
            " (study_id, number, state, params, value, best_value, best_step, step, score, metrics, earlier_ends)"
            " SELECT id, n, 'PENDING', '{}', 0.7, 0.5, 2, 3, 0.5, %s::jsonb,"
            " CASE n WHEN 1 THEN %s::jsonb ELSE '[]' END FROM study, generate_series(0, 1) n",
            (json.dumps(LAST), json.dumps([END])),
        )
        for sequence, (attempt, step, metrics) in enumerate(REPORTS):
            conn.execute(
                "INSERT INTO report (study_id, number, attempt, sequence, step, metrics, action, next_milestone)"
                " SELECT study_id, number, %s, %s, %s, %s::jsonb, 'CONTINUE', 3 FROM trial",
                (attempt, sequence, step, json.dumps(metrics)),
            )
    async with engine.begin() as conn:
        await upgrade(conn, "head")
    await engine.dispose()
    with psycopg.connect(url) as conn:
        found = conn.execute(
            "SELECT name, number, best_metrics, earlier_ends, score FROM trial JOIN study ON id = study_id"
        ).fetchall()
    of_step_2 = REPORTS[2][2]
    untouched = {"last", "several", "misses", "none"}
    assert {name for name, _, metrics, _, _ in found if metrics == {}} == untouched
    assert {name for name, _, metrics, _, _ in found if metrics == of_step_2} == {"best"}
    ends = {name: ends for name, number, _, ends, _ in found if number == 1}
    assert ends.pop("best") == [END | {"metrics": {"loss": 0.5, "size": 0.8}}]
    assert ends == {key: [END] for key in untouched}
    scores = {name: score for name, number, _, _, score in found if number == 0}
    assert scores == {"best": 0.5, "last": 0.5, "several": 0.7, "misses": None, "none": 0.5}
