"""Why a plan is what it is: why others lost, and if nothing fits, what prevents it and the smallest fix."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from headrace.errors import InvalidFieldError, Violation
from headrace_services.planner import catalogue
from headrace_services.planner.assignment import least_memory
from headrace_services.planner.cluster import MOST_DEVICES, Cluster
from headrace_services.planner.costing import MOST_SEQUENCES, USABLE_MEMORY, Costing, Request
from headrace_services.planner.degrees import Degrees, divisors, tensor_fault, tuples
from headrace_services.planner.deltas import Delta, deltas
from headrace_services.planner.memory import ZeroStage
from headrace_services.planner.modes import FULL, Mode
from headrace_services.planner.plan import Breakdown, Plan
from headrace_services.planner.search import Search, problem_of

GIB = 2**30
PARTS = {
    "compute_s": "computing",
    "communication_s": "tensor and expert collectives",
    "transfer_s": "transfers between stages",
    "recompute_s": "recomputing",
    "bubble_s": "bubbles",
    "tail_s": "gradients and optimizer",
}
"""The parts of an iteration, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """A tuple that is not the plan, and why."""

    degrees: Degrees
    seconds: float | None
    """None if it does not fit."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan compared with the tuples that came nearest."""

    plan: Plan
    losers: tuple[Loser, ...]
    deltas: tuple[Delta, ...]
    """The effect of each of the plan's degrees alone."""
    tuples: int
    impossible: int
    solved: int

    @property
    def summary(self) -> str:
        """How the search ended."""
        rest = self.tuples - self.impossible - self.solved
        return (
            f"{self.tuples} tuples of degrees: {self.impossible} cannot fit in memory, {self.solved} were solved, "
            f"and of {max(rest, 0)} the bound alone shows that they cannot be faster."
        )


def explain(search: Search, mode: Mode = FULL, *, count: int = 5) -> Explanation:
    """Why the mode's plan won. Raises InvalidFieldError when nothing fits."""
    outcome = search.run(mode)
    plan = outcome.plan
    if plan is None:
        raise nothing_fits(search, mode)
    return Explanation(
        plan=plan,
        losers=tuple(_losers(search, mode, plan, count)),
        deltas=tuple(deltas(search.costing, plan.degrees)),
        tuples=outcome.tuples,
        impossible=outcome.impossible,
        solved=outcome.solved,
    )


def _losers(search: Search, mode: Mode, plan: Plan, count: int) -> Iterator[Loser]:
    """The tuples with the smallest bounds, one for each (d, m, s) other than the plan's own."""
    seen = {(plan.degrees.d, plan.degrees.m, plan.degrees.s)}
    for _, degrees in search.bounds():
        key = (degrees.d, degrees.m, degrees.s)
        if key in seen or not mode.allows(degrees, search.request):
            continue
        if len(seen) > count:
            return
        seen.add(key)
        candidate = search.candidate(mode, degrees)
        if candidate is None:
            short = shortage(search.costing, mode, degrees)
            yield Loser(degrees=degrees, seconds=None, reason=short or "the schedule cannot run it")
            continue
        other = search.assembled(candidate)
        yield Loser(degrees=degrees, seconds=other.simulated_s, reason=difference(plan, other))


def difference(plan: Plan, other: Plan) -> str:
    """The parts of an iteration in which another plan loses most."""
    slower = other.simulated_s - plan.simulated_s
    parts = [
        (getattr(other.breakdown, part.name) - getattr(plan.breakdown, part.name), PARTS[part.name])
        for part in fields(Breakdown)
    ]
    worse = [f"{name} {seconds:+.3g} s" for seconds, name in sorted(parts, reverse=True)[:2] if seconds > 0]
    return f"{slower:.3g} s slower: {', '.join(worse) or 'within the parts alike'}"


def shortage(costing: Costing, mode: Mode, degrees: Degrees) -> str | None:
    """What a tuple lacks, or None if it fits or the schedule does not allow it."""
    made = problem_of(costing, mode, degrees)
    if made is None:
        return None
    used, stage = least_memory(made[0])
    missing = used - made[0].capacity_bytes
    if missing <= 0:
        return None
    return f"stage {stage} is {missing / GIB:.1f} GiB short of memory, however layers are placed"


def nothing_fits(search: Search, mode: Mode = FULL) -> InvalidFieldError:
    """The binding constraint and the smallest fix."""
    request = search.request
    if not any(True for _ in tuples(request.model, request.cluster, request.batch)):
        return _fault("batch", request.batch, *_unsplittable(request))
    allowed = [d for d in tuples(request.model, request.cluster, request.batch) if mode.allows(d, request)]
    if not allowed:
        message = (
            f"the axes of {mode.name} cannot use {request.cluster.devices} devices with batch {request.batch}"
        )
        return _fault("mode", mode.name, message, "Use mode h2o, or fewer devices.")
    missing, stage, degrees = min(_missing(search.costing, mode, degrees) for degrees in allowed)
    message = (
        f"is too small for {request.model.name} in mode {mode.name}: at best (d={degrees.d}, m={degrees.m}, "
        f"o={degrees.o}, s={degrees.s}, µ={degrees.mu}) stage {stage} is {missing / GIB:.1f} GiB short"
    )
    return _fault("cluster", request.cluster.name, message, _fix(search, mode))


def _missing(costing: Costing, mode: Mode, degrees: Degrees) -> tuple[int, int, Degrees]:
    made = problem_of(costing, mode, degrees)
    if made is None:
        return 1 << 62, 0, degrees
    used, stage = least_memory(made[0])
    return used - made[0].capacity_bytes, stage, degrees


def _fix(search: Search, mode: Mode) -> str:
    """The first of these that fits: all axes, more sharding, the usual share of memory, more devices."""
    request = search.request
    if mode is not FULL and _fits(request, FULL):
        return "Mode h2o fits here."
    for zero in ZeroStage:
        if zero > request.zero and _fits(replace(request, zero=zero), mode):
            return f"--zero {zero.value} fits here."
    usable = replace(request, usable_memory=max(request.usable_memory, USABLE_MEMORY))
    if usable != request and _fits(usable, mode):
        return f"--usable-memory {USABLE_MEMORY:g} fits here."
    for larger in _larger(request):
        if _fits(larger, mode):
            return f"{_written(larger.cluster)} fits with batch {larger.batch}."
    return "Use devices with more memory, or shorter sequences."


def _larger(request: Request) -> Iterator[Request]:
    """The same question for a larger number of whole nodes, with proportionally more work."""
    device = request.cluster.device
    for factor in (2, 4, 8, 16, 32, 64):
        devices, batch = request.cluster.devices * factor, request.batch * factor
        if devices > device.devices_per_node:
            devices = -(-devices // device.devices_per_node) * device.devices_per_node
        if devices <= MOST_DEVICES and batch <= MOST_SEQUENCES:
            yield replace(request, cluster=Cluster(device=device, devices=devices), batch=batch)


def _written(cluster: Cluster) -> str:
    """How to ask for a cluster: by a name, or by a number in its description."""
    device = cluster.device
    named = device.name in catalogue.devices()
    if named and catalogue.device(device.name).memory_bytes == device.memory_bytes:
        return cluster.name
    return f"devices: {cluster.devices} in the cluster's description"


def _fits(request: Request, mode: Mode) -> bool:
    search = Search(request)
    return any(
        mode.allows(degrees, request) and _missing(search.costing, mode, degrees)[0] <= 0
        for _, degrees in search.bounds()
    )


def _unsplittable(request: Request) -> tuple[str, str]:
    n, most = request.cluster.devices, len(request.model.layers)
    ranks = [m for m in divisors(n) if tensor_fault(request.model, request.cluster, m) is None]
    needed = min(d for d in divisors(n) if any(n // d // m <= most for m in ranks if n // d % m == 0))
    fitting = -(-request.batch // needed) * needed
    message = (
        f"cannot be split: {n} devices, at most {max(ranks)} tensor ranks and {most} stages need a multiple of "
        f"{needed}"
    )
    return message, f"Use a batch of {fitting}."


def _fault(field: str, value: object, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=str(value), message=message, remedy=remedy)])
