"""A plan as a framework can run it, priced again, and the report on what was lost."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace_services.planner.costing import Costing, Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.plan import Plan, assemble
from headrace_services.planner.problem import Solution

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One thing that the target cannot express, and its substitute."""

    what: str
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A plan and its lowered form."""

    original: Plan
    plan: Plan
    notes: tuple[Note, ...]

    @property
    def overflow_bytes(self) -> int:
        """By how much the fullest stage exceeds memory after lowering; 0 if all fit."""
        capacity = self.plan.request.capacity_bytes
        return max(0, *(stage.memory.total_bytes - capacity for stage in self.plan.stages))


def priced(
    plan: Plan,
    *,
    degrees: Degrees | None = None,
    request: Request | None = None,
    boundaries: tuple[int, ...] | None = None,
    recomputed: Iterable[int] | None = None,
) -> Plan:
    """The plan with some of its decisions replaced, assembled again whether or not it fits in memory."""
    request = request or plan.request
    degrees = degrees or plan.degrees
    costing = Costing(request)
    made = costing.problem(degrees)
    if made is None:
        raise ValueError("the schedule does not allow these degrees")
    problem, places = made
    order = [index for piece in places for index in piece]
    edges = boundaries or problem.boundaries or stage_boundaries(plan)
    again = set(plan.recomputed if recomputed is None else recomputed)
    positions = tuple(position for position, index in enumerate(order) if index in again)
    solution = Solution(boundaries=edges, recomputed=positions, objective_s=0.0)
    result = assemble(costing, plan.mode, degrees, replace(problem, boundaries=edges), places, solution)
    assert result is not None
    return result


def stage_boundaries(plan: Plan) -> tuple[int, ...]:
    """Where a plan's stages start and end in its chain."""
    edges = [0]
    for stage in plan.stages:
        edges.append(edges[-1] + len(stage.layers))
    return tuple(edges)


def report(lowered: Lowered, target: str) -> str:
    """The report as Markdown."""
    before, after = lowered.original, lowered.plan
    lines = [
        f"# {before.request.model.name} on {before.request.cluster.name} for {target}",
        "",
        (
            f"As planned: {before.simulated_s:.4g} s. As lowered: {after.simulated_s:.4g} s "
            f"({after.simulated_s / before.simulated_s - 1:+.1%}). Both are simulated."
        ),
        "",
    ]
    if lowered.notes:
        lines += ["| cannot be expressed | instead |", "|---|---|"]
        lines += [f"| {note.what} | {note.instead} |" for note in lowered.notes]
    else:
        lines.append("Everything that the plan says can be expressed.")
    lines += ["", "| stage | layers | recomputed | as lowered | recomputed |", "|---|---|---|---|---|"]
    for number, (one, other) in enumerate(zip(before.stages, after.stages, strict=True)):
        cells = (len(one.layers), len(one.recomputed), len(other.layers), len(other.recomputed))
        lines.append(f"| {number} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
