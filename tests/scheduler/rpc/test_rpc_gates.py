"""A study with a surrogate: what is created with it, which work a passed gate saves, and what is refused before."""

from typing import Any

import pytest
from rpc_site import RpcSite
from sqlalchemy import select, update

from headrace.errors import InvalidFieldError, StudyExistsError
from headrace.spec import StudySpec, from_proto, parse_spec, to_proto
from headrace.spec.surrogate import GATE
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

STUDY: dict[str, Any] = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "trial": {"callable": "train:train", "working_dir": "/data"},
    "space": {"lr": {"type": "float", "low": 1e-4, "high": 1.0}},
    "trials": 9,
    "steps": 9,
    "surrogate": {"model": "train:make_model", "width": 16},
    "gate": {"key": "abc"},
    "transfer": {"callable": "train:train"},
}


def spec(**changes: Any) -> StudySpec:
    return parse_spec({**STUDY, **changes})


async def create(site: RpcSite, name: str, wanted: StudySpec) -> StudySpec:
    request = pb.CreateStudyRequest(study_id=name, spec=to_proto(wanted))
    return from_proto((await site.call("CreateStudy", request)).study.spec)


async def names(site: RpcSite) -> list[str]:
    async with transaction(site.engine) as conn:
        return [
            row.name for row in await conn.execute(select(tables.study.c.name).order_by(tables.study.c.id))
        ]


async def shown(site: RpcSite, name: str) -> pb.Study:
    return (await site.call("GetStudy", pb.GetStudyRequest(name=f"studies/{name}"))).study


async def end_gate(site: RpcSite, name: str, state: str = "COMPLETED") -> None:
    s = tables.study
    async with transaction(site.engine) as conn:
        await conn.execute(update(s).where(s.c.name == name).values(state=state, end_time=s.c.create_time))


async def test_a_gate_is_created_before_its_study_which_waits_for_it(site: RpcSite) -> None:
    made = await create(site, "small", spec())
    assert await names(site) == ["small-gate", "small", "small-target"]
    assert (made.after, made.gate and made.gate.study) == ("small-gate", "small-gate")
    assert (await shown(site, "small")).status.waits_for == "study small-gate"
    gate = from_proto((await shown(site, "small-gate")).spec)
    assert gate.template is not None
    assert gate.template.callable == GATE
    assert from_proto((await shown(site, "small-target")).spec).after is None


async def test_a_passed_gate_with_the_same_key_is_enough(site: RpcSite) -> None:
    await create(site, "small", spec())
    await create(site, "early", spec())  # the first gate has not passed yet
    await end_gate(site, "small-gate")
    cached = await create(site, "second", spec())
    assert (cached.after, cached.gate and cached.gate.study) == (None, "small-gate")
    for name, changes in {"other": {"gate": {"key": "abd"}}, "none": {"gate": True}}.items():
        assert (await create(site, name, spec(**changes))).after == f"{name}-gate"
    found = await names(site)
    assert ("early-gate" in found, "second-gate" in found) == (True, False)


async def test_a_failed_gate_is_no_passed_one(site: RpcSite) -> None:
    await create(site, "small", spec())
    await end_gate(site, "small-gate", "FAILED")
    assert (await create(site, "second", spec())).after == "second-gate"


async def test_a_gate_without_a_key_passes_for_itself_alone(site: RpcSite) -> None:
    await create(site, "small", spec(gate=True))
    await end_gate(site, "small-gate")
    assert (await create(site, "second", spec(gate=True))).after == "second-gate"


async def test_without_a_gate_nothing_waits(site: RpcSite) -> None:
    assert (await create(site, "small", spec(gate=False))).after is None
    assert await names(site) == ["small", "small-target"]


async def test_the_gate_waits_for_what_the_study_waits_for(site: RpcSite) -> None:
    await create(site, "first", spec(surrogate=None, gate=None, transfer=None))
    assert (await create(site, "small", spec(after="first"))).after == "small-gate"
    assert from_proto((await shown(site, "small-gate")).spec).after == "first"


async def test_it_is_all_or_nothing(site: RpcSite) -> None:
    await create(site, "small-target", spec(surrogate=None, gate=None, transfer=None))
    with pytest.raises(StudyExistsError, match="small-target"):
        await create(site, "small", spec())
    assert await names(site) == ["small-target"]


async def test_what_does_not_carry_over_is_refused_by_name(site: RpcSite) -> None:
    unit = {"type": "float", "low": 0.0, "high": 1.0}
    space = {"lr": unit, "dropout": unit, "weight_decay": unit, "temperature": unit}
    wanted = to_proto(spec(space=space))
    for method, request in {
        "CreateStudy": pb.CreateStudyRequest(study_id="small", spec=wanted),
        "PreviewStudy": pb.PreviewStudyRequest(spec=wanted, slots=1),
    }.items():
        refused = await site.refusal(method, request)
        assert isinstance(refused, InvalidFieldError)
        fields = [one.field for one in refused.violations]
        assert fields == ["space.dropout", "space.weight_decay", "space.temperature"]
        assert "size of the model and of the data" in refused.violations[0].message
        assert "accept: [dropout]" in refused.violations[0].remedy
    surrogate = {**STUDY["surrogate"], "accept": ["dropout", "weight_decay", "temperature"]}
    await create(site, "small", spec(space=space, surrogate=surrogate))


async def test_a_study_begins_after_one_that_exists(site: RpcSite) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        await create(site, "small", spec(surrogate=None, gate=None, transfer=None, after="nobody"))
    (violation,) = refused.value.violations
    assert (violation.field, violation.value) == ("after", "nobody")
    assert "leave after out" in violation.remedy
