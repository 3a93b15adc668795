"""Converts the question of a transfer's plan between its model and its message, a planner's request."""

from typing import Any, Final

from headrace.spec.plan import DESCRIBES, TransferPlan
from headrace.v1 import planner_pb2
from headrace.v1 import spec_pb2 as pb

_DESCRIBED: Final = ("model", "cluster")
_WAYS: Final = frozenset(f"{name}_{way}" for name in _DESCRIBED for way in ("name", "json"))
_LIMITS: Final = ("seconds", "budget")


def request_to_proto(plan: TransferPlan) -> pb.TransferPlan:
    """The question as a message, without its answer."""
    options = plan.model_dump(exclude={*_DESCRIBED, *_LIMITS, "answer"}, exclude_none=True)
    described = {
        f"{name}_{'json' if text.startswith(DESCRIBES) else 'name'}": text
        for name in _DESCRIBED
        for text in [getattr(plan, name)]
    }
    question = planner_pb2.PlanQuestion(**described, **options)
    return pb.TransferPlan(
        request=planner_pb2.PlanRequest(question=question, seconds=plan.seconds, budget=plan.budget)
    )


def request_data(message: pb.TransferPlan) -> dict[str, Any]:
    """The plain data of the question."""
    question = message.request.question
    fields = (*question.ListFields(), *message.request.ListFields())
    data: dict[str, Any] = {
        field.name: value for field, value in fields if field.name not in {*_WAYS, "question"}
    }
    for name in _DESCRIBED:
        if (way := question.WhichOneof(name)) is not None:
            data[name] = getattr(question, way)
    return data
