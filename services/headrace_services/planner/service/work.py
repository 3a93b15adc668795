"""The work of a worker process: one question at a time, from bytes to bytes."""

import json
from enum import StrEnum

from headrace.errors import InvalidFieldError, Violation
from headrace.v1 import planner_pb2 as pb
from headrace_services.planner import asking
from headrace_services.planner.explain import explain, nothing_fits, shortage
from headrace_services.planner.modes import FULL
from headrace_services.planner.search import Search
from headrace_services.planner.service import convert
from headrace_services.planner.timeline import chrome_trace
from headrace_services.sandbox import Tell


class Task(StrEnum):
    """The functions that a worker runs, by the name of the call."""

    PLAN = "plan"
    SIMULATE = "simulate"
    EXPLAIN = "explain"


def run(task: str, request: bytes, tell: Tell) -> bytes:
    """Runs one call. Raises HeadraceError."""
    match Task(task):
        case Task.PLAN:
            return _plan(pb.PlanRequest.FromString(request), tell).SerializeToString()
        case Task.SIMULATE:
            return _simulate(pb.SimulateRequest.FromString(request)).SerializeToString()
        case Task.EXPLAIN:
            return _explain(pb.ExplainRequest.FromString(request)).SerializeToString()


def _plan(request: pb.PlanRequest, tell: Tell) -> pb.PlanResponse:
    question = request.question
    asked = convert.request_from(question)
    mode = asking.mode(question.mode or FULL.name)
    search = asking.search(
        asked,
        asking.method(question.method or "exact"),
        lambda progress: tell(convert.progress_to(progress).SerializeToString()),
        asking.limit(
            request.seconds if request.HasField("seconds") else None,
            request.budget if request.HasField("budget") else None,
        ),
    )
    outcome = search.run(mode)
    if outcome.plan is None and not outcome.complete:
        raise asking.nothing_yet(outcome.solved)
    if outcome.plan is None:
        raise nothing_fits(search, mode)
    return convert.response_to(outcome.plan, search.near(mode), outcome, convert.target_from(question))


def _simulate(request: pb.SimulateRequest) -> pb.SimulateResponse:
    asked = convert.request_from(request.question)
    mode = asking.mode(request.question.mode or FULL.name)
    search = Search(asked, method=asking.method(request.question.method or "exact"))
    degrees = convert.degrees_from(request.degrees, asked)
    if not mode.allows(degrees, asked):
        message = f"are not on the axes of mode {mode.name}"
        raise InvalidFieldError(
            [Violation(field="degrees", message=message, remedy="Leave the mode out, or change the degrees.")]
        )
    candidate = search.candidate(mode, degrees)
    if candidate is None:
        why = shortage(search.costing, mode, degrees) or "the schedule cannot run these degrees"
        fault = Violation(field="degrees", message=why, remedy="Ask Plan for degrees that fit.")
        raise InvalidFieldError([fault])
    plan = search.assembled(candidate)
    trace = json.dumps(chrome_trace(plan)) if request.trace else ""
    return pb.SimulateResponse(
        plan=convert.plan_to(plan, convert.target_from(request.question)), trace_json=trace
    )


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
