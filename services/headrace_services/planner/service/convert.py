"""Converts between messages of planner.proto and the planner's values. The only place that knows both."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headrace.errors import InvalidFieldError, Violation
from headrace.userfile import parse_json
from headrace.v1 import planner_pb2 as pb
from headrace_services.planner import asking, catalogue
from headrace_services.planner.cluster import Cluster, checked_cluster, device_from_description
from headrace_services.planner.costing import USABLE_MEMORY, Request
from headrace_services.planner.degrees import Degrees, tensor_fault
from headrace_services.planner.emit import emit
from headrace_services.planner.explain import Explanation
from headrace_services.planner.model import Model
from headrace_services.planner.plan import Plan
from headrace_services.planner.record import plan_record
from headrace_services.planner.search import Outcome, Progress

T = TypeVar("T")


def request_from(question: pb.PlanQuestion) -> Request:
    """The request in a question. Raises InvalidFieldError with fields as the message names them."""
    options = asking.Options(
        batch=question.batch if question.HasField("batch") else None,
        schedule=question.schedule or "1f1b",
        chunks=question.chunks if question.HasField("chunks") else 1,
        zero=question.zero if question.HasField("zero") else 1,
        attention=question.attention or "flash",
        gradients=question.gradients or None,
        overlap=question.overlap or None,
        sequence_parallel=question.sequence_parallel if question.HasField("sequence_parallel") else True,
        usable_memory=question.usable_memory if question.HasField("usable_memory") else USABLE_MEMORY,
        target=target_from(question),
    )
    return asking.assembled(_model(question), _cluster(question), options)


def target_from(question: pb.PlanQuestion) -> str | None:
    """The framework whose files accompany the plan. Raises InvalidFieldError."""
    return asking.target(question.target or None)


def response_to(plan: Plan, near: Sequence[Plan], outcome: Outcome, target: str | None) -> pb.PlanResponse:
    """The end of a search as a message."""
    return pb.PlanResponse(
        plan=plan_to(plan, target),
        shortlist=[
            pb.PlanToMeasure(
                degrees=degrees_to(one.degrees),
                iteration_s=one.simulated_s,
                peak_bytes=one.peak_bytes,
            )
            for one in near
        ],
        complete=outcome.complete,
        bound_s=outcome.bound_s,
    )


def degrees_from(degrees: pb.PlanDegrees, request: Request) -> Degrees:
    """Degrees that a caller chose. Raises InvalidFieldError if they do not divide."""
    found = Degrees(
        d=degrees.data,
        m=degrees.tensor,
        o=degrees.optimizer or 1,
        s=degrees.pipeline,
        mu=degrees.micro_batches,
        e=degrees.expert or 1,
    )
    rules = [
        ("data", found.d, found.d < 1, "must be positive", "Give at least 1."),
        ("tensor", found.m, found.m < 1, "must be positive", "Give at least 1."),
        (
            "pipeline",
            found.s,
            not 1 <= found.s <= len(request.model.layers),
            "is not a valid number of stages",
            "Use 1 to L.",
        ),
        ("micro_batches", found.mu, found.mu < 1, "must be positive", "Give at least 1."),
    ]
    if not any(wrong for _, _, wrong, _, _ in rules):
        n, per_rank = request.cluster.devices, request.batch // found.d
        experts = max(request.model.experts, 1)
        rules += [
            (
                "data",
                found.d,
                found.devices != n,
                "times tensor times pipeline is not",
                f"Make it {n} devices.",
            ),
            (
                "data",
                found.d,
                request.batch % found.d != 0,
                f"does not divide batch {request.batch}",
                "Use a divisor.",
            ),
            (
                "micro_batches",
                found.mu,
                per_rank % found.mu != 0,
                f"does not divide {per_rank}",
                "Use a divisor.",
            ),
            (
                "optimizer",
                found.o,
                found.d % found.o != 0,
                f"does not divide data {found.d}",
                "Use a divisor.",
            ),
            (
                "tensor",
                found.m,
                tensor_fault(request.model, request.cluster, found.m) is not None,
                tensor_fault(request.model, request.cluster, found.m) or "",
                "Use a divisor of all that tensor ranks split.",
            ),
            (
                "expert",
                found.e,
                found.d % found.e != 0 or experts % found.e != 0,
                f"does not divide data {found.d} and {experts} experts",
                "Use a divisor of both.",
            ),
        ]
    faults = [
        Violation(field=f"degrees.{field}", value=str(value), message=message, remedy=remedy)
        for field, value, wrong, message, remedy in rules
        if wrong
    ]
    if faults:
        raise InvalidFieldError(faults)
    return found


def degrees_to(degrees: Degrees) -> pb.PlanDegrees:
    """Degrees as a message."""
    return pb.PlanDegrees(
        data=degrees.d,
        tensor=degrees.m,
        optimizer=degrees.o,
        pipeline=degrees.s,
        micro_batches=degrees.mu,
        expert=degrees.e,
    )


def plan_to(plan: Plan, target: str | None = None) -> pb.TrainingPlan:
    """A plan as a message, with the files for a target."""
    parts = plan.breakdown
    return pb.TrainingPlan(
        degrees=degrees_to(plan.degrees),
        stages=[
            pb.PlanStage(
                layers=stage.layers,
                recomputed=stage.recomputed,
                forward_s=stage.times.forward_s,
                backward_s=stage.times.backward_s,
                tail_s=stage.times.tail_s,
                static_bytes=stage.memory.static_bytes,
                activation_bytes=stage.memory.activation_bytes,
                rebuild_bytes=stage.memory.rebuild_bytes,
                in_flight=stage.in_flight,
            )
            for stage in plan.stages
        ],
        iteration_s=plan.simulated_s,
        analytic_s=plan.analytic_s,
        lower_bound_s=plan.lower_bound_s,
        mfu=plan.mfu,
        hfu=plan.hfu,
        breakdown=pb.PlanBreakdown(
            compute_s=parts.compute_s,
            communication_s=parts.communication_s,
            transfer_s=parts.transfer_s,
            recompute_s=parts.recompute_s,
            bubble_s=parts.bubble_s,
            tail_s=parts.tail_s,
        ),
        exact=plan.exact,
        calibrated=plan.request.cluster.device.calibrated,
        json=json.dumps(plan_record(plan)),
        files=emit(plan, target) if target else {},
        notes=plan.notes,
    )


def progress_to(progress: Progress) -> pb.PlanProgress:
    """Progress as a message."""
    return pb.PlanProgress(
        mode=progress.mode, tuples=progress.total, solved=progress.solved, best_s=progress.best_s
    )


def explanation_to(explanation: Explanation) -> pb.ExplainResponse:
    """An explanation as a message."""
    losers = [
        pb.PlanLoser(degrees=degrees_to(one.degrees), iteration_s=one.seconds, reason=one.reason)
        for one in explanation.losers
    ]
    return pb.ExplainResponse(plan=plan_to(explanation.plan), summary=explanation.summary, losers=losers)


def _model(question: pb.PlanQuestion) -> Model:
    sequence = question.sequence if question.HasField("sequence") else None
    if question.WhichOneof("model") != "model_json":
        return _by_name("model_name", question.model_name, lambda name: catalogue.model(name, sequence))
    return catalogue.described_model("model", _parsed("model_json", question.model_json), sequence)


def _cluster(question: pb.PlanQuestion) -> Cluster:
    if question.WhichOneof("cluster") != "cluster_json":
        return _by_name("cluster_name", question.cluster_name, catalogue.cluster)
    description = _parsed("cluster_json", question.cluster_json)
    count = description.get("devices")
    if not isinstance(count, int) or isinstance(count, bool):
        raise _fault("cluster_json.devices", str(count), "must be a whole number", "Say how many there are.")
    return checked_cluster(
        device_from_description("cluster", description, catalogue.profiles()), count, description
    )


def _by_name(field: str, name: str, find: Callable[[str], T]) -> T:
    """By name only: a server opens no file that a caller names."""
    if name.endswith(".json"):
        raise _fault(field, name, "is a file, which a server does not read", "Send its text as JSON instead.")
    return find(name)


def _parsed(field: str, text: str) -> dict[str, Any]:
    try:
        loaded = parse_json(text)
    except ValueError as error:
        raise _fault(field, text[:40], f"is not JSON: {error}", "Correct it.") from None
    if not isinstance(loaded, dict):
        raise _fault(field, text[:40], "must be one JSON object", "Write {...}.")
    return loaded


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
