"""The table of transitions: what it contains works, and both the code and the database refuse everything else."""

import itertools
import re

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.core.lifecycle import TRANSITIONS, Action, State, TransitionError, next_state
from headrace_services.scheduler.store import tables

MOVES = {(row.source, row.target) for row in TRANSITIONS if row.source is not None}
NOT_MOVES = [pair for pair in itertools.product(State, State) if pair[0] is not pair[1] and pair not in MOVES]
"""All pairs of different states that no row of the table connects."""

SHAPES = {
    State.PENDING: {"milestone": 1, "lapsed": True},
    State.RUNNING: {"milestone": 1, "attempt": 1, "lease_id": "l"},
    State.PAUSED: {"milestone": 1, "attempt": 1, "checkpoint": {"uri": "u", "step": 1}, "lapsed": True},
    State.RESUMED: {"milestone": 1, "attempt": 2, "lease_id": "l", "checkpoint": {"uri": "u", "step": 1}},
    State.TERMINATED: {"reason": "COMPLETED", "end_time": text("now()")},
}
"""Column values that satisfy every other constraint in a state, so that a refusal is due to the transition."""
EMPTY = {
    "milestone": None,
    "attempt": 2,
    "lease_id": None,
    "checkpoint": None,
    "reason": None,
    "end_time": None,
    "lapsed": False,
}

PATHS = {
    State.PENDING: [],
    State.RUNNING: [State.RUNNING],
    State.PAUSED: [State.RUNNING, State.PAUSED],
    State.RESUMED: [State.RUNNING, State.PAUSED, State.RESUMED],
    State.TERMINATED: [State.TERMINATED],
}


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row.source}-{row.action}-{row.target}")
def test_every_row_of_the_table_is_followed(row) -> None:
    checkpoint = row.target in (State.PAUSED, State.RESUMED) or row.action is Action.RESTORED
    assert next_state(row.source, row.action, checkpoint=checkpoint) is row.target


@pytest.mark.parametrize(("source", "action"), list(itertools.product([None, *State], Action)))
def test_what_is_not_in_the_table_is_refused(source: State | None, action: Action) -> None:
    if any(row.source is source and row.action is action for row in TRANSITIONS):
        return
    for checkpoint in (False, True):
        with pytest.raises(TransitionError):
            next_state(source, action, checkpoint=checkpoint)


@pytest.mark.parametrize("action", [Action.PAUSE, Action.RESUME])
def test_pausing_and_resuming_need_a_checkpoint(action: Action) -> None:
    source = State.RUNNING if action is Action.PAUSE else State.PAUSED
    with pytest.raises(TransitionError, match="needs a durable checkpoint"):
        next_state(source, action, checkpoint=False)


async def _trial_in(conn, state: State) -> None:
    study = (
        insert(tables.study)
        .values(name="s", uid="u", state="ACTIVE", spec={}, planned=1)
        .returning(tables.study.c.id)
    )
    study_id = (await conn.execute(study)).scalar_one()
    await conn.execute(
        insert(tables.trial).values(
            study_id=study_id, number=0, state="PENDING", params={}, milestone=1, attempt=2, lapsed=True
        )
    )
    for step in PATHS[state]:
        await conn.execute(
            update(tables.trial).values(**{**EMPTY, **SHAPES[step], "attempt": 2, "state": step.value})
        )


@pytest.mark.parametrize(("source", "target"), sorted(MOVES))
async def test_the_database_allows_each_move(engine: AsyncEngine, source: State, target: State) -> None:
    async with engine.begin() as conn:
        await _trial_in(conn, source)
        values = {**EMPTY, **SHAPES[target], "attempt": 2, "state": target.value}
        assert (await conn.execute(update(tables.trial).values(**values))).rowcount == 1


async def test_the_database_refuses_every_other_move(engine: AsyncEngine) -> None:
    assert len(NOT_MOVES) == 6
    for source, target in NOT_MOVES:
        async with engine.connect() as conn:
            await _trial_in(conn, source)
            values = {**EMPTY, **SHAPES[target], "attempt": 2, "state": target.value}
            with pytest.raises(IntegrityError, match="no transition leads from"):
                await conn.execute(update(tables.trial).values(**values))


@pytest.mark.parametrize("state", State)
async def test_a_trial_begins_pending_or_launched(engine: AsyncEngine, state: State) -> None:
    async with engine.connect() as conn:
        study = (
            insert(tables.study)
            .values(name="s", uid="u", state="ACTIVE", spec={}, planned=1)
            .returning(tables.study.c.id)
        )
        study_id = (await conn.execute(study)).scalar_one()
        shape = {**SHAPES[state], "study_id": study_id, "number": 0, "params": {}}
        begin = insert(tables.trial).values(state=state.value, **shape)
        if state in (State.PENDING, State.RUNNING):
            await conn.execute(begin)
            assert (await conn.execute(select(tables.trial.c.state))).scalar_one() == state
        else:
            with pytest.raises(IntegrityError, match=f"a trial begins PENDING, or launched, not {state}"):
                await conn.execute(begin)


BROKEN_ROWS = {
    "trial_lease": (State.RUNNING, {"lease_id": None}),
    "trial_lapsed": (State.RUNNING, {"lapsed": True}),
    "trial_checkpoint": (State.PAUSED, {"checkpoint": None}),
    "trial_best_checkpoint": (State.PENDING, {"best_checkpoint": {}}),
    "trial_milestone": (State.RUNNING, {"milestone": None}),
    "trial_placed": (State.RUNNING, {"attempt": 0}),
    "trial_reason": (State.PENDING, {"reason": "FAILED"}),
    "trial_end": (State.PENDING, {"end_time": text("now()")}),
    "trial_over": (State.TERMINATED, {"milestone": 3}),
    "trial_reasons": (State.TERMINATED, {"reason": "BORED"}),
    "trial_baseline": (State.PENDING, {"baseline": True, "number": 1}),
    "trial_counts": (State.PENDING, {"step": -1}),
    "trial_counted_end": (State.PENDING, {"counted_end": 0}),
    "trial_generation": (State.PENDING, {"generation": -1}),
    "trial_state": (State.PENDING, {"state": "ASLEEP", "lapsed": False}),
}


async def test_every_rule_that_a_row_can_break_is_a_constraint(engine: AsyncEngine) -> None:
    for constraint, (state, change) in BROKEN_ROWS.items():
        async with engine.connect() as conn:
            await _trial_in(conn, state)
            if constraint in ("trial_placed", "trial_state"):
                await conn.execute(text("ALTER TABLE trial DISABLE TRIGGER USER"))
            with pytest.raises(IntegrityError, match=constraint):
                await conn.execute(update(tables.trial).values(**change))
    declared = {str(c.name) for c in tables.trial.constraints if type(c).__name__ == "CheckConstraint"}
    assert declared == set(BROKEN_ROWS)


async def test_an_attempt_never_goes_back(engine: AsyncEngine) -> None:
    async with engine.connect() as conn:
        await _trial_in(conn, State.RUNNING)
        with pytest.raises(IntegrityError, match="an attempt never goes back"):
            await conn.execute(update(tables.trial).values(attempt=1))


@pytest.mark.parametrize("source", [State.PENDING, State.PAUSED])
async def test_an_attempt_begins_once_unless_it_has_lapsed(engine: AsyncEngine, source: State) -> None:
    run = update(tables.trial).values(**{**EMPTY, **SHAPES[State.RUNNING], "attempt": 2, "state": "RUNNING"})
    for lapsed in (False, True):
        async with engine.connect() as conn:
            await _trial_in(conn, source)
            await conn.execute(update(tables.trial).values(lapsed=lapsed))
            if lapsed:
                await conn.execute(run.values(lapsed=True))
                assert not (await conn.execute(select(tables.trial.c.lapsed))).scalar_one(), "it has moved"
            else:
                with pytest.raises(IntegrityError, match="an attempt begins once"):
                    await conn.execute(run)


async def test_the_trigger_holds_the_table(engine: AsyncEngine) -> None:
    async with engine.connect() as conn:
        defined = await conn.execute(text("SELECT pg_get_functiondef('trial_transition'::regproc)"))
        sql = defined.scalar_one()
    (allowed,) = re.findall(r"\(OLD.state, NEW.state\) NOT IN \((.*?)\n +\) THEN", sql, re.DOTALL)
    pairs = set(re.findall(r"\('([A-Z]+)', '([A-Z]+)'\)", allowed))
    assert pairs == {(source.value, target.value) for source, target in MOVES}
