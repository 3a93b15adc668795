"""Studies whose scale a pilot finds: they and the studies after them start with it, and never without it."""

from typing import Any

import pytest
from msgspec.structs import replace
from sampler_studies import spec_of
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from test_after import looking, looks_often, until
from test_suggesting import Replica, X, engine, replica

from headrace.spec import StudySpec
from headrace.spec.pilot import SCALE
from headrace_services.scheduler.session.known_studies import KnownStudies
from headrace_services.scheduler.session.messages import assign
from headrace_services.scheduler.store import tables, workers
from headrace_services.scheduler.store.database import transaction

__all__ = ["engine", "looks_often"]  # fixtures

XS = [number / 11 for number in range(12)]


def pilot(**changes: Any) -> StudySpec:
    """A pilot as the scheduler makes it, except for its program: it is an ask/tell study."""
    space = {**X, SCALE: {"type": "categorical", "values": [1, 8, 4]}}
    enqueued = [{"x": x, SCALE: scale} for scale in (1, 8, 4) for x in XS]
    return spec_of("random", space, enqueued=enqueued, max_trials=len(enqueued), **changes)


def waiting(after: str) -> StudySpec:
    surrogate = {
        "model": "train:make_model",
        "pilot": {"scales": [8, 4], "steps": 1, "study": "small-scale"},
        "accept": ["x"],
    }
    template = {"callable": "train:train", "working_dir": "/data"}
    return spec_of("random", X, surrogate=surrogate, template=template, after=after, max_trials=2)


async def play(one: Replica, study_id: int, values: dict[int, int]) -> None:
    """A trial of a scale gets the rank of its x among all trials, from the front or from the back."""
    for _ in range(3 * len(XS)):
        asked = await one.suggest(study_id)
        assert asked.trial is not None
        await one.finish(
            study_id, asked, loss=values[int(asked.trial.params[SCALE])] * float(asked.trial.params["x"])
        )


async def choice(one: Replica, study_id: int) -> Any:
    s = tables.study
    return (await one.rows(select(s.c.scale_choice).where(s.c.id == study_id)))[0].scale_choice


async def info(one: Replica, study_id: int) -> workers.StudyInfo:
    async with transaction(one.hub.engine) as conn:
        found = await workers.study_by_id(conn, study_id)
    assert found is not None
    return found


async def test_the_gate_and_the_study_begin_with_the_scale_that_the_pilot_chose(engine: AsyncEngine) -> None:
    async with replica(engine) as one, looking(one):
        pilot_id = await one.create(pilot(), "small-scale")
        gate_id = await one.create(waiting("small-scale"), "small-gate")
        study_id = await one.create(waiting("small-gate"), "small")
        remembered = KnownStudies(engine)
        assert (await remembered.by_id(gate_id)) is not None  # a scheduler that saw it before it started
        await play(one, pilot_id, {1: 1, 8: -1, 4: 2})
        await until(one, gate_id, after=None)
        found = await choice(one, gate_id)
        assert (found["scale"], found["study"]) == (4, "small-scale")
        assert [(each["scale"], each["agrees"]) for each in found["tried"]] == [(8, False), (4, True)]
        known = await remembered.by_id(gate_id)
        assert known is not None
        assert (known.waits, known.scale) == (False, 4)
        assert "with scale 4: τ 1.00, regret 0" in (await one.events(gate_id, "note"))[-1].message
        # The study takes it from the gate, even if the pilot no longer exists.
        async with transaction(one.hub.engine) as conn:
            await conn.execute(tables.study.delete().where(tables.study.c.id == pilot_id))
            ended = {"state": "COMPLETED", "end_time": tables.study.c.create_time}
            await conn.execute(tables.study.update().where(tables.study.c.id == gate_id).values(ended))
        await until(one, study_id, after=None)
        assert await choice(one, study_id) == found


async def test_a_pilot_that_cannot_choose_fails_all_that_wait_with_its_reason(engine: AsyncEngine) -> None:
    async with replica(engine) as one, looking(one):
        pilot_id = await one.create(pilot(), "small-scale")
        gate_id = await one.create(waiting("small-scale"), "small-gate")
        study_id = await one.create(waiting("small-gate"), "small")
        await play(one, pilot_id, {1: 1, 8: -1, 4: -2})
        found = await until(one, study_id, state="FAILED")
        assert found.detail.startswith(
            "study 'small-gate', after which this one begins, failed: no small copy"
        )
        assert "scale 8: τ -1.00" in found.detail
        assert "surrogate: {scale: 4}" in found.detail
        assert await choice(one, study_id) is None
        assert await choice(one, gate_id) is None


async def test_values_that_overflow_end_the_wait_of_all_behind_the_pilot(engine: AsyncEngine) -> None:
    """The difference between the model's best value and its median overflows the floats."""
    async with replica(engine) as one, looking(one):
        pilot_id = await one.create(pilot(), "small-scale")
        gate_id = await one.create(waiting("small-scale"), "small-gate")
        study_id = await one.create(waiting("small-gate"), "small")
        for _ in range(3 * len(XS)):
            asked = await one.suggest(pilot_id)
            assert asked.trial is not None
            await one.finish(pilot_id, asked, loss=-1.7e308 if asked.trial.params["x"] == 0 else 1.7e308)
        for waits in (gate_id, study_id):
            found = await until(one, waits, state="FAILED")
            assert "lie too far apart to be compared" in found.detail
            assert "surrogate: {scale: 8}" in found.detail


@pytest.mark.parametrize(("scale", "model"), [(1, ""), (8, "train:make_model")])
async def test_a_pilots_trial_gets_its_own_scale_and_not_the_pilots_parameter(
    engine: AsyncEngine, scale: int, model: str
) -> None:
    async with replica(engine) as one:
        surrogate = {"model": "train:make_model", "scale_by": SCALE, "accept": ["x"]}
        template = {"callable": "train:train", "working_dir": "/data"}
        told = await one.create(pilot(), "told")  # its trials are ask/tell, so a lease is at hand
        asked = await one.suggest(told)
        assert asked.trial is not None
        assert asked.lease is not None
        study = await info(
            one, await one.create(pilot(surrogate=surrogate, template=template), "small-scale")
        )
        trial = replace(asked.trial, params={"x": 0.5, SCALE: scale})
        message = assign(study, trial, asked.lease)
        assert list(message.parameters.values) == ["x"]
        assert (message.surrogate.model, message.surrogate.scale) == (model, scale if model else 0)
        assert message.surrogate.scale_by == ""
