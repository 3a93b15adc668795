"""Plans as plain data with stable keys: what `--json` prints and a plan file holds."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headrace_services.planner.cluster import OVERLAPS
from headrace_services.planner.plan import Plan, StagePlan
from headrace_services.planner.search import Outcome
from headrace_services.planner.shortlist import within


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    request, device = plan.request, plan.request.cluster.device
    return {
        "model": request.model.name,
        "parameters": request.model.parameters,
        "cluster": request.cluster.name,
        "calibrated": device.calibrated,
        "batch": request.batch,
        "sequence": request.model.sequence,
        "schedule": request.schedule.value,
        "attention": request.attention.value,
        "zero": int(request.zero),
        "gradients": request.gradients.value,
        "overlap": {name: getattr(device.efficiencies, name) for name in OVERLAPS},
        "notes": list(plan.notes),
        "sequence_parallel": request.sequence_parallel,
        "mode": plan.mode,
        "degrees": {**asdict(plan.degrees), "micro_batch": plan.micro_batch},
        "iteration_s": plan.simulated_s,
        "analytic_s": plan.analytic_s,
        "lower_bound_s": plan.lower_bound_s,
        "paper_s": plan.paper_s,
        "gap": plan.gap,
        "exact": plan.exact,
        "mfu": plan.mfu,
        "hfu": plan.hfu,
        "breakdown": asdict(plan.breakdown),
        "capacity_bytes": request.capacity_bytes,
        "stages": [_stage(stage) for stage in plan.stages],
    }


def brief_record(plan: Plan) -> dict[str, Any]:
    """A plan among others as JSON: what it is, and what is predicted for it."""
    return {
        "degrees": {**asdict(plan.degrees), "micro_batch": plan.micro_batch},
        "recomputed": len(plan.recomputed),
        "iteration_s": plan.simulated_s,
        "peak_bytes": plan.peak_bytes,
    }


def shortlist_record(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """A shortlist as JSON, fastest first: the plans, and whether each is within the model's error of the first."""
    return [
        {**brief_record(plan), "within_error": within(plan.simulated_s, plans[0].simulated_s)}
        for plan in plans
    ]


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """A search as JSON; `plan` is null when nothing fits."""
    return {
        "mode": outcome.mode,
        "tuples": outcome.tuples,
        "impossible": outcome.impossible,
        "solved": outcome.solved,
        "plan": plan_record(outcome.plan) if outcome.plan else None,
    }


def _stage(stage: StagePlan) -> dict[str, Any]:
    return {
        "chunks": [list(chunk) for chunk in stage.chunks],
        "recomputed": list(stage.recomputed),
        "forward_s": stage.times.forward_s,
        "backward_s": stage.times.backward_s,
        "recompute_s": stage.recompute_s,
        "tail_s": stage.times.tail_s,
        "in_flight": stage.in_flight,
        "memory": {**asdict(stage.memory), "total_bytes": stage.memory.total_bytes},
    }
