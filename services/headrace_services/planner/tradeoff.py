"""The front of time against memory: how much slower a plan is that needs less memory on each device."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from headrace_services.planner.costing import Request
from headrace_services.planner.modes import FULL, Mode
from headrace_services.planner.plan import Plan
from headrace_services.planner.search import Method, Search, Watch

STEP: Final = 0.95
"""Each point may use at most this share of what the previous point used."""
MOST: Final = 12


def front(
    request: Request, mode: Mode = FULL, method: Method = Method.EXACT, watch: Watch | None = None
) -> Iterator[Plan]:
    """The fastest plan, then the fastest that needs at least 5% less memory, and so on until nothing fits.

    Every plan is the search's answer for its share of memory. A plan that needs less and is no slower replaces the
    previous one, so times rise along the front.
    """
    before: Plan | None = None
    usable = request.usable_memory
    for _ in range(MOST):
        plan = Search(replace(request, usable_memory=usable), method=method, watch=watch).run(mode).plan
        if plan is None:
            break
        if before is not None and plan.simulated_s > before.simulated_s:
            yield before
        before = plan
        usable = STEP * plan.peak_bytes / request.cluster.device.memory_bytes
    if before is not None:
        yield before
