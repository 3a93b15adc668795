"""What a worker process does: one question at a time, from bytes to bytes."""

import json
from enum import StrEnum

from headrace.errors import InvalidFieldError, Violation
from headrace.v1 import planner_pb2 as pb
from headrace_services.apart import Tell
from headrace_services.planner import asking
from headrace_services.planner.explain import explain, nothing_fits, shortage
from headrace_services.planner.modes import FULL
from headrace_services.planner.search import Search
from headrace_services.planner.service import convert
from headrace_services.planner.timeline import chrome_trace


class Task(StrEnum):
    """What a worker is asked, by the name of the call."""

    PLAN = "plan"
    SIMULATE = "simulate"
    EXPLAIN = "explain"


def run(task: str, request: bytes, tell: Tell) -> bytes:
    """One call. Raises HeadraceError."""
    match Task(task):
        case Task.PLAN:
            return _plan(pb.PlanRequest.FromString(request), tell).SerializeToString()
        case Task.SIMULATE:
            return _simulate(pb.SimulateRequest.FromString(request)).SerializeToString()
        case Task.EXPLAIN:
            return _explain(pb.ExplainRequest.FromString(request)).SerializeToString()


def _plan(request: pb.PlanRequest, tell: Tell) -> pb.TrainingPlan:
    question = request.question
    asked = convert.request_from(question)
    mode = asking.mode(question.mode or FULL.name)
    search = asking.search(
        asked,
        asking.method(question.method or "exact"),
        lambda progress: tell(convert.progress_to(progress).SerializeToString()),
    )
    plan = search.run(mode).plan
    if plan is None:
        raise nothing_fits(search, mode)
    return convert.plan_to(plan)


def _simulate(request: pb.SimulateRequest) -> pb.SimulateResponse:
    asked = convert.request_from(request.question)
    search = Search(asked, method=asking.method(request.question.method or "exact"))
    degrees = convert.degrees_from(request.degrees, asked)
    candidate = search.candidate(FULL, degrees)
    if candidate is None:
        why = shortage(search.costing, FULL, degrees) or "the schedule cannot run these degrees"
        fault = Violation(field="degrees", message=why, remedy="Ask Plan for degrees that fit.")
        raise InvalidFieldError([fault])
    plan = search.assembled(candidate)
    trace = json.dumps(chrome_trace(plan)) if request.trace else ""
    return pb.SimulateResponse(plan=convert.plan_to(plan), trace_json=trace)


def _explain(request: pb.ExplainRequest) -> pb.ExplainResponse:
    asked = convert.request_from(request.question)
    mode = asking.mode(request.question.mode or FULL.name)
    count = request.count if request.HasField("count") else 5
    if not 1 <= count <= 50:
        fault = Violation(
            field="count", value=str(count), message="must be from 1 to 50", remedy="Ask for fewer."
        )
        raise InvalidFieldError([fault])
    search = asking.search(asked, asking.method(request.question.method or "exact"), None)
    return convert.explanation_to(explain(search, mode, count=count))
