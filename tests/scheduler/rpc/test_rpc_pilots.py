"""A study with `scale: auto`: what is created with it, in which order it starts, and what is refused before."""

import asyncio
from typing import Any

import pytest
from rpc_site import RpcSite
from test_rpc_gates import create, end_gate, names, shown, spec

from headrace.errors import InvalidFieldError, StudyExistsError
from headrace.spec import Pilot, StudySpec, from_proto, to_proto
from headrace.spec.pilot import SCALE
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.engine import followers
from headrace_services.scheduler.engine.followers import Followers
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.scales import NoScaleError
from headrace_services.scheduler.store.after import waits_over
from headrace_services.scheduler.store.database import transaction

AUTO: dict[str, Any] = {"model": "train:make_model", "scale": "auto", "pilot": {"steps": 1, "scales": [8, 4]}}


def auto(**changes: Any) -> StudySpec:
    return spec(surrogate=AUTO, **changes)


async def test_a_pilot_is_created_before_the_gate_which_waits_for_it(site: RpcSite) -> None:
    made = await create(site, "small", auto())
    assert await names(site) == ["small-scale", "small-gate", "small", "small-target"]
    found = {name: from_proto((await shown(site, name)).spec) for name in await names(site)}
    assert [one.after for one in found.values()] == [None, "small-scale", "small-gate", None]
    assert made == found["small"]
    for name in ("small-gate", "small"):
        surrogate = found[name].surrogate
        assert surrogate is not None
        assert surrogate.pilot is not None
        assert surrogate.pilot.study == "small-scale"
        assert not (await shown(site, name)).HasField("scale_choice")
    pilot = found["small-scale"]
    rates = [one["lr"] for one in pilot.enqueued if one[SCALE] == 1]
    assert len(set(rates)) == 12
    assert [one["lr"] for one in pilot.enqueued] == 3 * rates
    lows = sum(float(rate) < 0.5 for rate in rates)
    assert lows == 6  # spread over the space
    assert found["small-target"].surrogate is None


async def test_the_pilot_waits_for_what_the_study_waits_for(site: RpcSite) -> None:
    await create(site, "first", spec(surrogate=None, gate=None, transfer=None))
    assert (await create(site, "small", auto(after="first"))).after == "small-gate"
    assert from_proto((await shown(site, "small-scale")).spec).after == "first"


async def test_no_passed_gate_spares_one_whose_scale_is_not_known_yet(site: RpcSite) -> None:
    await create(site, "small", auto(gate={"key": "abc"}))
    await end_gate(site, "small-gate")
    assert (await create(site, "second", auto(gate={"key": "abc"}))).after == "second-gate"
    # it has the key, but a scale of its own
    assert (await create(site, "third", spec())).after == "third-gate"


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
async def test_the_scale_is_chosen_by_the_studys_goal_and_not_by_its_gates(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch, goal: str
) -> None:
    """The gate, which waits for the pilot, minimizes whatever the goal of the study is."""
    await create(site, "small", auto(objective={"metric": "loss", "goal": goal}))
    await end_gate(site, "small-scale")
    asked: list[bool] = []

    def looks_on(pilot: Pilot, trials: object, *, study: str, maximize: bool) -> None:
        asked.append(maximize)
        raise NoScaleError("seen")

    monkeypatch.setattr(followers, "choose", looks_on)
    async with transaction(site.engine) as conn:
        (over,) = await waits_over(conn)
    async with asyncio.TaskGroup() as tasks:
        said = await Followers(Hub(site.engine, tasks), tasks)._said(over)
    assert (said.study, said.why_not) == ("small-scale", "seen")
    assert asked == [goal == "maximize"]


async def test_it_is_all_or_nothing(site: RpcSite) -> None:
    await create(site, "small-scale", spec(surrogate=None, gate=None, transfer=None))
    with pytest.raises(StudyExistsError, match="small-scale"):
        await create(site, "small", auto())
    assert await names(site) == ["small-scale"]


async def test_a_space_with_too_few_configurations_is_refused(site: RpcSite) -> None:
    space = {"lr": {"type": "categorical", "values": [0.1, 0.2, 0.3]}}
    request = pb.CreateStudyRequest(study_id="small", spec=to_proto(auto(space=space)))
    refused = await site.refusal("CreateStudy", request)
    assert isinstance(refused, InvalidFieldError)
    (violation,) = refused.violations
    assert (violation.field, violation.value) == ("surrogate.scale", "auto")
    assert "10 configurations at least, and 3 were found" in violation.message
    assert "scale: 8" in violation.remedy
    assert await names(site) == []
    preview = pb.PreviewStudyRequest(spec=to_proto(auto(space=space)))
    assert str(await site.refusal("PreviewStudy", preview)) == str(refused)


@pytest.mark.full
async def test_a_preview_counts_the_pilot_and_the_targets(site: RpcSite) -> None:
    request = pb.PreviewStudyRequest(
        spec=to_proto(auto()), slots=12, seconds_per_step=1.0, target_seconds_per_step=60.0
    )
    pilot, target = (await site.call("PreviewStudy", request)).companions
    assert (pilot.role, pilot.trials, pilot.steps) == ("pilot", 36, 36)
    assert pilot.slot_time.ToTimedelta().total_seconds() == 12 * 60 + 24
    assert target.role == "target"
    assert target.slot_time.ToTimedelta().total_seconds() == 60 * target.steps


async def test_a_name_that_leaves_no_room_for_the_pilots_is_refused(site: RpcSite) -> None:
    name = "a" * 62
    refused = await site.refusal("CreateStudy", pb.CreateStudyRequest(study_id=name, spec=to_proto(auto())))
    assert isinstance(refused, InvalidFieldError)
    assert await names(site) == []
