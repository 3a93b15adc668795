"""A cycle over thousands of rows yields the event loop to the streams, again and again."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import func, insert, literal, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.core.inputs import StopStudy
from headrace_services.scheduler.store import apply, load, rows, tables
from headrace_services.scheduler.store.database import transaction

TRIALS = 1500


async def test_the_end_of_a_large_study_is_made_by_turns(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await StudySite(engine, make_spec(max_trials=2 * TRIALS)).create()
    await site.connect(slots=2)
    await site.kick()
    t = tables.trial
    first = select(func.max(t.c.number) + 1).where(t.c.study_id == site.study_id).scalar_subquery()
    number = func.generate_series(first, TRIALS - 1).column_valued("number")
    waiting = select(literal(site.study_id), number, literal("PENDING"), literal({"x": 0.5}, t.c.params.type))
    async with transaction(engine) as conn:
        await conn.execute(insert(t).from_select(["study_id", "number", "state", "params"], waiting))
        grown = update(tables.study).where(tables.study.c.id == site.study_id)
        await conn.execute(grown.values(next_number=TRIALS))
    site.fold = None
    turn = 0
    rows_in_turn: dict[str, Counter[int]] = {}

    def counted(name: str) -> None:
        of, seen = getattr(rows, name), rows_in_turn.setdefault(name, Counter())

        def counting(*arguments: Any) -> Any:
            seen[turn] += 1
            return of(*arguments)

        monkeypatch.setattr(rows, name, counting)

    async def take_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    for name in ("trial", "trial_columns", "event_columns"):
        counted(name)
    others = asyncio.create_task(take_turns())
    await site.step(StopStudy(reason="enough"))
    while site.last is not None and site.last.effects.again:
        await site.kick()
    others.cancel()
    at_once = {name: max(seen.values()) for name, seen in rows_in_turn.items()}
    most = max(load.PAGE, apply.ROWS_AT_ONCE)
    assert all(count <= most for count in at_once.values()), at_once
    assert all(seen.total() >= TRIALS for seen in rows_in_turn.values())
    over = select(t.c.number, t.c.end_cursor).where(t.c.study_id == site.study_id, t.c.state == "TERMINATED")
    ended = await site.rows(over.order_by(t.c.end_cursor))
    assert [row.number for row in ended] == list(range(TRIALS))
