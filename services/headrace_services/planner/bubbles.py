"""The idle windows of a plan: how much tuning each stage would carry, before the job starts.

A window is a gap between two passes of the simulated iteration. The gap after a stage's last work joins the one
before its first pass, because the next iteration starts there. Receiving counts as work, as in the simulator.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from headrace_services.planner.plan import Plan

SHORTEST_S: Final = 0.003
"""A window of fewer than three quanta of a millisecond opens no gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindows:
    """One stage's windows in an iteration.

    Attributes:
        stage: its number, from 0.
        windows: how many there are.
        usable: how many of them are long enough.
        idle_s, usable_s: their total seconds.
        longest_s: the longest one.
        share: the usable share of the iteration.
        free_bytes: memory of a device that the plan leaves free at the stage's peak.
    """

    stage: int
    windows: int
    usable: int
    idle_s: float
    usable_s: float
    longest_s: float
    share: float
    free_bytes: int


def windows(plan: Plan) -> list[StageWindows]:
    """Returns every stage's windows."""
    found = []
    for number, stage in enumerate(plan.stages):
        lengths = list(_lengths(plan, number))
        usable = [one for one in lengths if one >= SHORTEST_S]
        found.append(
            StageWindows(
                stage=number,
                windows=len(lengths),
                usable=len(usable),
                idle_s=sum(lengths),
                usable_s=sum(usable),
                longest_s=max(lengths, default=0.0),
                share=sum(usable) / plan.simulated_s,
                free_bytes=max(0, int(plan.request.capacity_bytes - stage.memory.total_bytes)),
            )
        )
    return found


def records(plan: Plan) -> list[dict[str, Any]]:
    """The same as JSON objects."""
    return [asdict(one) for one in windows(plan)]


def _lengths(plan: Plan, stage: int) -> Iterator[float]:
    simulation = plan.run()
    events = simulation.events(stage)
    around = events[0].start_s + simulation.total_s - events[-1].end_s - plan.stages[stage].times.tail_s
    gaps = [around, *(after.start_s - before.end_s for before, after in pairwise(events))]
    resolution = 1e-9 * simulation.total_s  # rounding leaves this between passes that touch
    yield from (gap for gap in gaps if gap > resolution)
