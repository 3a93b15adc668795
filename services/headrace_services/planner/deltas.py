"""The effect of each degree alone on memory, communication and computation: the Delta cost model (H²O, section 2).

For each degree x of a plan, the same tuple with x at 1 is priced next to it, all else equal. The differences show
what x gains and what it costs on one device: Δ memory of parameters with their optimizer, Δ memory of activations,
Δ seconds of communication and of computation in an iteration. With x at 1 a tuple has fewer devices, which is
intended: the deltas explain a plan and are not used to find it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from headrace_services.planner.costing import Costing
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.schedules import in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The costs of one device in one iteration, with layers spread evenly over stages and nothing recomputed."""

    static_bytes: float
    """Parameters, gradients, optimizer state."""
    activation_bytes: float
    """Activations of the first stage's micro-batches in flight."""
    communication_s: float
    compute_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one degree changes, compared with the same tuple with this degree at 1."""

    degree: str
    value: int
    change: Cost


def deltas(costing: Costing, degrees: Degrees) -> Iterator[Delta]:
    """One for every degree above 1, in the order d, m, o, s, µ, e."""
    here = cost(costing, degrees)
    for field in fields(Degrees):
        value = getattr(degrees, field.name)
        if value == 1:
            continue
        alone = replace(degrees, **{field.name: 1})
        if field.name == "d":
            alone = replace(alone, o=1, e=1)  # both divide d
        there = cost(costing, alone)
        change = {part.name: getattr(here, part.name) - getattr(there, part.name) for part in fields(Cost)}
        yield Delta(degree="µ" if field.name == "mu" else field.name, value=value, change=Cost(**change))


def cost(costing: Costing, degrees: Degrees) -> Cost:
    """A tuple's costs on one device."""
    request = costing.request
    links = costing.links(degrees)
    shown = sum(costing.communication_s(degrees, index) for index in range(len(links)))
    passes = sum(link.forward_s + link.backward_s for link in links)
    exchange = sum(max(link.reduce_s - link.reduce_behind_s, 0.0) for link in links)
    exchange += sum(max(link.gather_s - link.gather_behind_s, 0.0) for link in links)
    chunks = costing.chunks(degrees)
    alive = in_flight(request.schedule, degrees.s, degrees.mu, chunks)[0] / chunks
    return Cost(
        static_bytes=sum(link.static_bytes for link in links) / degrees.s,
        activation_bytes=sum(link.saved_bytes for link in links) * alive / degrees.s,
        communication_s=(degrees.mu * shown + exchange) / degrees.s,
        compute_s=(degrees.mu * (passes - shown) + sum(link.tail_s for link in links)) / degrees.s,
    )
