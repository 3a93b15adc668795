"""Plans between the models and their messages."""

from typing import Any, Final

from headrace.spec.plan import DESCRIBES, TransferPlan, TrialPlan
from headrace.v1 import planner_pb2
from headrace.v1 import spec_pb2 as pb

_DESCRIBED: Final = ("model", "cluster")
_WAYS: Final = frozenset(f"{name}_{way}" for name in _DESCRIBED for way in ("name", "json"))
_LIMITS: Final = ("seconds", "budget")


def plan_to_proto(plan: TransferPlan) -> pb.TransferPlan:
    """The question, and its answer, as a message."""
    options = plan.model_dump(exclude={*_DESCRIBED, *_LIMITS, "answer"}, exclude_none=True)
    described = {
        f"{name}_{'json' if text.startswith(DESCRIBES) else 'name'}": text
        for name in _DESCRIBED
        for text in [getattr(plan, name)]
    }
    question = planner_pb2.PlanQuestion(**described, **options)
    request = planner_pb2.PlanRequest(question=question, seconds=plan.seconds, budget=plan.budget)
    answer = None if plan.answer is None else trial_plan_to_proto(plan.answer)
    return pb.TransferPlan(request=request, answer=answer)


def plan_data(message: pb.TransferPlan) -> dict[str, Any]:
    """The plain data of a message."""
    question = message.request.question
    fields = (*question.ListFields(), *message.request.ListFields())
    data: dict[str, Any] = {
        field.name: value for field, value in fields if field.name not in {*_WAYS, "question"}
    }
    for name in _DESCRIBED:
        if (way := question.WhichOneof(name)) is not None:
            data[name] = getattr(question, way)
    if message.HasField("answer"):
        data["answer"] = trial_plan_data(message.answer)
    return data


def trial_plan_to_proto(plan: TrialPlan) -> pb.TrialPlan:
    """A plan with its files as a message."""
    return pb.TrialPlan(
        degrees=planner_pb2.PlanDegrees(**plan.degrees.model_dump()),
        iteration_s=plan.iteration_s,
        files=plan.files,
    )


def trial_plan_data(message: pb.TrialPlan) -> dict[str, Any]:
    """The plain data of a message."""
    degrees = {field.name: value for field, value in message.degrees.ListFields()}
    return {"degrees": degrees, "iteration_s": message.iteration_s, "files": dict(message.files)}
