"""A transfer with a plan on a scheduler: who keeps the planner's files, and what works without an answer."""

from typing import Any

from rpc_site import RpcSite

from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, from_proto, parse_spec, to_proto
from headrace.v1 import study_pb2 as pb

FILES = {"plan.json": "{}\n", "pipeline.py": "DATA, TENSOR = 2, 1\n"}
ANSWER: dict[str, Any] = {
    "degrees": {"data": 2, "tensor": 1, "pipeline": 2, "micro_batches": 4},
    "iteration_s": 0.5,
    "files": FILES,
}
SPEC = parse_spec(
    {
        "objective": {"metric": "loss", "goal": "minimize"},
        "trial": {"callable": "train:train", "working_dir": "/data"},
        "space": {"lr": {"type": "float", "low": 1e-4, "high": 1.0}},
        "trials": 9,
        "steps": 9,
        "transfer": {"callable": "train:target", "plan": {"model": "gpt3-125m", "cluster": "a100-4"}},
    }
)


async def shown(site: RpcSite, name: str) -> StudySpec:
    return from_proto((await site.call("GetStudy", pb.GetStudyRequest(name=f"studies/{name}"))).study.spec)


async def test_the_target_has_the_files_and_the_first_study_what_is_said_of_them(site: RpcSite) -> None:
    request = pb.CreateStudyRequest(study_id="small", spec=to_proto(SPEC.with_answer(ANSWER)))
    await site.call("CreateStudy", request)
    first, target = await shown(site, "small"), await shown(site, "small-target")
    assert target.template is not None
    assert target.template.plan is not None
    assert target.template.plan.files == FILES
    assert first.plan is not None
    assert first.plan.answer is not None
    assert (first.plan.answer.files, first.plan.answer.degrees) == ({}, target.template.plan.degrees)


async def test_a_plan_that_nobody_asked_for_is_refused(site: RpcSite) -> None:
    refused = await site.refusal("CreateStudy", pb.CreateStudyRequest(study_id="small", spec=to_proto(SPEC)))
    assert isinstance(refused, InvalidFieldError)
    (found,) = refused.violations
    assert (found.field, found.message) == ("transfer.plan", "has no answer of a planner")
    assert "headrace run" in found.remedy
    await site.call("PreviewStudy", pb.PreviewStudyRequest(spec=to_proto(SPEC), slots=1))
