"""No statement of a cycle reads a whole table that grows with the history; each has its index.

The tests check the plans on a small database, and on a large one with `HEADRACE_PLANNED_TRIALS=200000`
(`make long`).
"""

import os
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.ages import Ages
from headrace_services.scheduler import store
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.needs import (
    AnyRunnable,
    BestScored,
    Decisions,
    Devices,
    OverTrials,
    ResultsAfter,
    RoomForStudies,
    SilentLeases,
    Unfinished,
    UnstartedCount,
    UserPausedCount,
)
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.store import (
    aging,
    exploits,
    history,
    leases,
    leftovers,
    placement,
    proposals,
    quotas,
    removal,
    requests,
    studies,
    tables,
    trials,
    unseen,
    workers,
)
from headrace_services.scheduler.store.database import PLANS, open_engine
from headrace_services.scheduler.store.load import load
from headrace_services.scheduler.store.pipeline import Statement

TRIALS = int(os.environ.get("HEADRACE_PLANNED_TRIALS", "2000"))
STUDIES = 20
DAY, NOW = timedelta(days=1), datetime.now(UTC)
GROWING = {
    *(
        "trial",
        "lease",
        "slot_grant",
        "grant_part",
        "report",
        "rung_result",
        "exploit",
        "event",
        "request",
        "study",
    )
}
"""The tables of past data. Workers, slots and requests about leases grow with the cluster instead."""
HISTORY = """
INSERT INTO study (name, uid, state, spec, planned, next_number, end_time)
  SELECT 's' || n, 'u' || n, CASE WHEN n = 1 THEN 'ACTIVE' ELSE 'COMPLETED' END, '{"template": "t", "resources": {}}',
    $trials / $studies, $trials / $studies, CASE WHEN n > 1 THEN now() END FROM generate_series(1, $studies) n;
INSERT INTO worker (name, incarnation, connected) SELECT 'w' || n, 'i', true FROM generate_series(1, 8) n;
INSERT INTO trial (study_id, number, state, params, attempt, reason, end_time, end_cursor, score, checkpoint)
  SELECT s.id, n, 'TERMINATED', '{}', 1, 'COMPLETED', now(), n, n, '{"uri": "c", "step": 1}'
  FROM study s, generate_series(0, $trials / $studies - 1) n;
INSERT INTO slot_grant (id, study_id, slot_count, live, end_time)
  SELECT study_id || '.' || number, study_id, 1, false, now() FROM trial;
INSERT INTO grant_part (grant_id, worker_id, incarnation, slots)
  SELECT study_id || '.' || number, 1 + number % 8, 'i', '{0}' FROM trial;
INSERT INTO lease (id, study_id, number, attempt, grant_id, worker_id, live, end_time)
  SELECT study_id || '.' || number, study_id, number, 1, study_id || '.' || number, 1 + number % 8, false, now()
  FROM trial;
INSERT INTO report (study_id, number, attempt, sequence, step, metrics, action, next_milestone)
  SELECT study_id, number, 1, q, q, '{}', 'CONTINUE', 9 FROM trial, generate_series(1, 3) q;
INSERT INTO rung_result (study_id, number, rung, bracket, milestone, step, arrival, cursor, promoted_cursor)
  SELECT study_id, number, 0, 0, 1, 1, number, number + 1, number + 2 FROM trial;
INSERT INTO exploit (study_id, number, rung, donor, checkpoint, previous_params, params, cursor)
  SELECT study_id, number, 0, number - 1, '{"uri": "c", "step": 1}', '{}', '{}', number FROM trial WHERE number > 0;
INSERT INTO event (study_id, cursor, number, kind, message, detail)
  SELECT study_id, 3 * number + q, number, 'trial_moved', '', '{}' FROM trial, generate_series(1, 3) q;
INSERT INTO request (request_id, method, digest, response)
  SELECT study_id || '.' || number, 'm', '', '' FROM trial;
UPDATE trial SET state = 'RUNNING', milestone = 1, reason = NULL, end_time = NULL, end_cursor = NULL,
  lease_id = study_id || '.' || number WHERE study_id = 1 AND number < 64;
UPDATE trial SET state = 'PENDING', milestone = 1, reason = NULL, end_time = NULL, end_cursor = NULL
  WHERE study_id = 1 AND number >= $trials / $studies / 2 AND lease_id IS NULL;
UPDATE slot_grant SET live = true, end_time = NULL WHERE id IN (SELECT lease_id FROM trial WHERE lease_id IS NOT NULL);
UPDATE lease SET live = true, end_time = NULL WHERE id IN (SELECT lease_id FROM trial WHERE lease_id IS NOT NULL);
INSERT INTO slot (worker_id, index, kind, model, memory_bytes, uuid)
  SELECT id, n, 'GPU', 'm', 8, '' FROM worker, generate_series(0, 7) n;
"""


def statements() -> Iterator[tuple[str, Statement]]:
    """Every statement of the store, by its name."""
    for module in pkgutil.iter_modules(store.__path__, f"{store.__name__}."):
        if not module.ispkg:
            for name, value in vars(import_module(module.name)).items():
                if isinstance(value, Statement):
                    yield f"{module.name.rpartition('.')[2]}.{name}", value
    for named in ((), ("labels",), ("memory", "types"), ("slots",)):
        yield f"free slots by {named}", placement._free(frozenset(named))
        yield f"the number of free slots by {named}", placement._count_free(frozenset(named))


@pytest.fixture(scope="module")
def with_history(postgres_url: str, migrated_template: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the scheduler's own options, to a database with a history."""
    url = make_url(postgres_url).set(database="with_history").render_as_string(hide_password=False)
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE with_history TEMPLATE {migrated_template}")
    with psycopg.connect(url, autocommit=True, options=PLANS) as conn:
        conn.execute("SET session_replication_role = replica")  # the history is inserted without triggers
        conn.execute(HISTORY.replace("$trials", str(TRIALS)).replace("$studies", str(STUDIES)))
        conn.execute("SET session_replication_role = origin")
        conn.execute("ANALYZE")
        yield conn
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute("DROP DATABASE with_history WITH (FORCE)")


def url_of(conn: psycopg.Connection[Any]) -> str:
    """The URL of a connection's database, which listens on a socket."""
    info = conn.info
    return f"postgresql://{info.user}:{info.password}@/{info.dbname}?host={info.host}"


@pytest.mark.parametrize("name", [name for name, _ in statements()])
def test_a_statement_finds_its_rows_by_an_index(with_history: psycopg.Connection[Any], name: str) -> None:
    text = dict(statements())[name].compiled.text.decode()
    ((found,),) = with_history.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {text}".encode()).fetchall()
    assert read_whole(with_history, found[0]["Plan"]) == []


LOADED = (
    Decisions(keys=frozenset({(1, 1, 1)})),
    SilentLeases(leases=frozenset({"1.1"})),
    UnstartedCount(),
    UserPausedCount(),
    AnyRunnable(),
    Devices(request=Request(slots=1, gpu=True)),
    ResultsAfter(number=5),
    BestScored(apart=frozenset({1}), named=frozenset({5}), maximize=False, full_first=False),
    BestScored(apart=frozenset({1}), named=frozenset(), maximize=True, full_first=True),
    Unfinished(after=5, limit=500),
    OverTrials(number=5, reasons=frozenset({Reason.FAILED}), cut_off=True),
    RoomForStudies(),
)
"""What a cycle asks for one at a time."""


async def ask_everything(conn: AsyncConnection) -> None:
    """Run the queries of the rest of the scheduler: cycles, sweeps, the cleaner, samplers and lists."""
    for need in LOADED:
        await load(conn, 1, need)
    await workers.expired_leases(conn)
    await workers.forget_asked_of_ended(conn)
    await workers.forget_gone(conn, DAY, 10)
    await workers.forget_ephemeral(conn, 10)
    await workers.studies_waiting_for_slots(conn)
    await workers.held_leases(conn, 1)
    await requests.forget_old(conn, DAY, 10)
    await proposals.levels_since(conn, 1, 5, 9)
    for level in (proposals.FIRST, 1):
        await proposals.results_since(conn, 1, level, 5, 9, budgets=(1, 3, 1))
        await proposals.pending(conn, 1, level)
        await proposals.earlier(conn, "default", "s2", level, 10, top=1)
    among = (1, 3, 9)
    await proposals.results_since(conn, 1, proposals.EVERY, 5, 9, budgets=(1, 3, 9), among=among)
    await proposals.results_since(conn, 1, proposals.EVERY, 0, 9, budgets=(9,), among=among)
    await proposals.pending(conn, 1, proposals.EVERY)
    await proposals.earlier(conn, "default", "s2", 1, 10, top=9, below=3)
    await proposals.studies_to_propose_for(conn)
    await history.events_after(conn, 1, 5, 10)
    await history.events_of_trial(conn, 1, 5, 1000)
    for page in (unseen.trials_created, unseen.rung_results, unseen.trials_ended):
        async for _ in page(conn, 1, 5):
            break
    await exploits.since(conn, 1, 5)
    await exploits.of_trials(conn, 1, [5])
    await trials.views(conn, (tables.trial.c.study_id == 1) & (tables.trial.c.number == 5))
    await studies.newest(conn, "default", before_id=None, limit=5)
    await studies.find(conn, "default", "nobody")
    await quotas.projects(conn, after="", only=None, limit=10)
    await quotas.holders(conn, "default")
    await quotas.kept_off(conn, "default")
    await studies.to_count(conn)
    await leases.renew(conn, "default", "s1", 5, lease_id="1.1", attempt=1)
    await clean(conn)


async def clean(conn: AsyncConnection) -> None:
    """Run the queries of the janitor, and those of workers about their folders."""
    for part in removal.PARTS:
        await removal.remove_some(conn, 3, part, 5, after=(0,) * len(part.key))
    await removal.mark_deleted(conn, 3)
    await removal.deleted_studies(conn, 5)
    await removal.remove_study(conn, 3)
    for kind in ("events", "reports", "leases", "checkpoints", "studies"):
        await aging.due(conn, kind, timedelta(0), 5, NOW)
    one = aging.Due(id=4, end_time=NOW, ended="0")
    await aging.hold(conn, one)
    for kind in aging.OF_ROWS:
        await aging.remove_aged(conn, kind, one, 5, None)
    await aging.forget_checkpoints(conn, one, frozenset({1}), 5, (0,))
    await aging.note_aged(conn, "events", one, all_of_it=True)
    await aging.forget_tombstones(conn, DAY, 5)
    await leftovers.judge(conn, ["s5-u5"], Ages())


async def test_what_sqlalchemy_asks_finds_its_rows_by_an_index(
    with_history: psycopg.Connection[Any],
) -> None:
    said: list[tuple[str, Any]] = []
    engine = open_engine(url_of(with_history))

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def listen(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        said.append((statement, parameters))

    async with engine.connect() as conn:
        await ask_everything(conn)
    await engine.dispose()
    found = list[str]()
    for statement, parameters in said:
        if statement.startswith(("SELECT", "WITH", "UPDATE", "DELETE", "INSERT")):
            rows = with_history.execute(f"EXPLAIN (FORMAT JSON) {statement}".encode(), parameters).fetchall()
            if whole := read_whole(with_history, rows[0][0][0]["Plan"]):
                found.append(f"{whole}: {statement}")
    assert len(said) > 30
    assert not found, "\n".join(found)


GROWING_INDEXES = """
SELECT indexrelid::regclass::text FROM pg_index
WHERE indrelid::regclass::text = ANY(%s)
  AND (indpred IS NULL OR pg_get_expr(indpred, indrelid) !~ '^(live|\\(live .*|.*ACTIVE.*)$')
"""
"""Indexes of the growing tables, except the partial ones on live or active rows: these grow with the cluster."""


def read_whole(conn: psycopg.Connection[Any], plan: dict[str, Any]) -> list[str]:
    """The tables and indexes that a plan reads completely."""
    indexes = {row[0] for row in conn.execute(GROWING_INDEXES, [list(GROWING)]).fetchall()}
    return [
        f"{node['Node Type']} of {node.get('Relation Name', '')} by {node.get('Index Name', 'no index')}"
        for node in nodes({"Node Type": "Result", "Plans": [plan]})
        if reads_all(node, indexes)
    ]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A plan's nodes, except those of which a page takes the first rows, whatever follows."""
    for part in plan.get("Plans", ()):
        if plan["Node Type"] != "Limit" or "Filter" in part:
            yield part
        yield from nodes(part)


def reads_all(node: dict[str, Any], indexes: set[str]) -> bool:
    """Whether a node reads all rows of a growing table, or all entries of such an index."""
    if node["Node Type"] == "Seq Scan":
        return node["Relation Name"] in GROWING
    return node.get("Index Name") in indexes and "Index Cond" not in node
