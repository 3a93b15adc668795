"""All seeds of a scenario combined: one row of estimates for each variant."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace_services.scheduler.simulator.scenario import Outcome, SeedOutcomes
from headrace_services.scheduler.simulator.statistics import (
    Estimate,
    bootstrapped,
    expected_cost,
    mean,
    share,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant over all seeds. Times are seconds of virtual time; costs are relative to run-all on the same
    seed."""

    label: str
    steps: Estimate
    slot_s: Estimate
    wall_s: Estimate
    cost: Estimate
    """Slot time as a share of run-all's."""
    wall: Estimate
    """Wall time as a share of run-all's."""
    completed: Estimate
    stopped: Estimate
    pauses: Estimate
    idle: Estimate
    idle_pending: Estimate
    regret: Estimate
    survived: Estimate
    """How often the trial with the best value at the full budget was trained to the end."""
    found: Estimate
    """How often the winner is that trial."""
    top: Estimate
    """How many of the `TOP` best trials are among the study's own best."""
    reached: Estimate
    """How often some report was within the target."""
    to_target_slot_s: Estimate
    """The expected slot time to reach the target, including the cost of misses."""
    to_target_s: Estimate
    """The same for wall time."""


def rows(seeds: Sequence[SeedOutcomes]) -> tuple[Row, ...]:
    """A row for each variant, in order; run-all is the first."""
    labels = tuple(seeds[0])
    return tuple(
        _row(label, [seed[label] for seed in seeds], [seed[labels[0]] for seed in seeds]) for label in labels
    )


def _row(label: str, outcomes: Sequence[Outcome], base: Sequence[Outcome]) -> Row:
    found = [outcome.summary for outcome in outcomes]
    first = [outcome.summary for outcome in base]
    return Row(
        label=label,
        steps=mean([s.steps for s in found]),
        slot_s=mean([s.slot_s for s in found]),
        wall_s=mean([s.wall_s for s in found]),
        cost=mean([_ratio(s.slot_s, b.slot_s) for s, b in zip(found, first, strict=True)]),
        wall=mean([_ratio(s.wall_s, b.wall_s) for s, b in zip(found, first, strict=True)]),
        completed=mean([s.completed for s in found]),
        stopped=mean([s.stopped for s in found]),
        pauses=mean([s.pauses for s in found]),
        idle=mean([s.idle for s in found]),
        idle_pending=mean([s.idle_pending for s in found]),
        regret=bootstrapped([s.regret for s in found]),
        survived=share([s.survived for s in found]),
        found=share([s.winner is not None and s.winner == s.best for s in found]),
        top=mean([s.top for s in found]),
        reached=share([s.to_target_s is not None for s in found]),
        to_target_slot_s=expected_cost([s.to_target_slot_s for s in found], [s.slot_s for s in found]),
        to_target_s=expected_cost([s.to_target_s for s in found], [s.wall_s for s in found]),
    )


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def row_record(row: Row) -> dict[str, Any]:
    """The row as plain data."""
    return asdict(row)
