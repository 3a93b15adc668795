"""Learning-rate schedules that end: those that a trial tracks, and the last of its steps that each one covers.

`headrace extend` lets a trial continue past the budget for which its schedule was made, and the checkpoint
restores the schedule with its end. `OneCycleLR` then raises an error, `CosineAnnealingLR` lets the learning rate
rise again, and `PolynomialLR`, or a `LinearLR` down to 0, leaves it at 0. So the trial includes in its reports
where its schedules end, even if it is past that step. Schedules that keep a rate other than 0 past their end
(`LinearLR`, `ConstantLR`) and those without an end (`StepLR`, restarts) are not reported. Neither is `LambdaLR`,
which includes Hugging Face's schedules: its functions are not in the checkpoint, so the script's own count, such
as `num_training_steps`, applies.

A schedule counts its own steps: epochs, or batches. The number of them per step of the trial is measured between
reports: from the start of the process to its first report, and from then on if there are more. PyTorch is not
imported here: classes are recognized by name.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from headrace.bounds.numbers import STEPS
from headrace.trial.runtime import PastEnd, Schedule
from headrace.trial.tracking import Tracked, TrackedFiles

_BY_CLASS: Final = {
    "OneCycleLR": ("total_steps", PastEnd.RAISES),
    "CosineAnnealingLR": ("T_max", PastEnd.RISES),
    "PolynomialLR": ("total_iters", PastEnd.UNKNOWN),
    "LinearLR": ("total_iters", PastEnd.UNKNOWN),
}
"""Maps a class to the attribute with the last count that the schedule covers, and to what it does past that."""
_BY_ATTRIBUTE: Final = ("total_steps", "T_max")
"""The same for an unknown class."""
_MOST = 16


@dataclass(frozen=True, slots=True)
class End:
    """The current position of a schedule, in its own steps, and the last step that it covers."""

    kind: str
    count: int
    last: int
    past_end: PastEnd


@dataclass(slots=True)
class _Seen:
    """The observed counts of a schedule at steps of the trial."""

    since: tuple[int, int]
    """A step and its count, from which the rate is measured."""
    newest: tuple[int, int]
    reports: int = 0


class Schedules:
    """What one process reports about its schedules."""

    def __init__(self, *, resumed: bool) -> None:
        self._seen: dict[str, _Seen] = {}
        # A resumed trial may have reported schedules that it no longer has.
        self._told: tuple[Schedule, ...] | None = None if resumed else ()

    def begin(self, tracked: Mapping[str, Tracked | TrackedFiles], step: int) -> None:
        """Tracked objects are restored, and the trial has done this step. Called again if more becomes known."""
        for name, end in _ends(tracked):
            self._see(name, step, end)

    def at_report(
        self, tracked: Mapping[str, Tracked | TrackedFiles], step: int
    ) -> tuple[Schedule, ...] | None:
        """What to send with the report of this step; None if it has not changed, or is not known yet."""
        found: list[Schedule] = []
        for name, end in _ends(tracked):
            last_step = _last_step(self._see(name, step, end), step, end)
            if last_step is not None:
                found.append(Schedule(name=name, kind=end.kind, last_step=last_step, past_end=end.past_end))
            elif end.count < end.last:
                return None
        told = tuple(found[:_MOST])
        if told == self._told:
            return None
        self._told = told
        return told

    def _see(self, name: str, step: int, end: End) -> _Seen:
        now = (step, end.count)
        return self._seen.setdefault(name, _Seen(since=now, newest=now))


def _last_step(seen: _Seen, step: int, end: End) -> int | None:
    """The last step of the trial that the schedule covers; None if that is not known yet, or if the script holds
    the schedule at its end.
    """
    before_step, before_count = seen.newest
    first = not seen.reports
    seen.reports += 1
    seen.newest = (step, end.count)
    if end.count >= end.last and step > before_step and end.count == before_count:
        return None  # it is no longer stepped
    steps, counts = step - seen.since[0], end.count - seen.since[1]
    if first:
        seen.since = (step, end.count)
    if steps <= 0 or counts <= 0:
        return None
    # Past its end the difference is negative: the end does not move, however far the trial continues.
    return min(max(0, step + (end.last - end.count) * steps // counts), STEPS)


def _ends(tracked: Mapping[str, Tracked | TrackedFiles]) -> list[tuple[str, End]]:
    """The schedules that end, among the tracked ones and those inside a framework's object that exposes them."""
    found: list[tuple[str, End]] = []
    for name, entry in tracked.items():
        with suppress(Exception):  # a script's own object may not answer
            found += _ends_in(name, entry.target)
    return found


def _ends_in(name: str, target: Any) -> list[tuple[str, End]]:
    inside = getattr(target, "lr_schedules", None)
    named = [(name, target)]
    if isinstance(inside, list | tuple):
        named = [(f"{name}[{place}]", schedule) for place, schedule in enumerate(inside)]
    return [(called, end) for called, schedule in named if (end := end_of(schedule)) is not None]


def end_of(schedule: Any) -> End | None:
    """Where a schedule ends; None for a schedule without an end, one that stays constant past it, and any other
    object.
    """
    names = [kind.__name__ for kind in type(schedule).__mro__]
    if "SequentialLR" in names:
        return _end_of_sequence(schedule)
    if "ChainedScheduler" in names:
        ends = [end for one in getattr(schedule, "_schedulers", ()) if (end := end_of(one)) is not None]
        first = min(ends, key=lambda end: end.last - end.count, default=None)
        return None if first is None else replace(first, kind=f"ChainedScheduler of {first.kind}")
    found = next((_BY_CLASS[name] for name in names if name in _BY_CLASS), None)
    if found is None:
        found = next(((name, PastEnd.UNKNOWN) for name in _BY_ATTRIBUTE if hasattr(schedule, name)), None)
    if found is None or ("LinearLR" in names and getattr(schedule, "end_factor", None) != 0):
        return None
    count, last = getattr(schedule, "last_epoch", None), getattr(schedule, found[0], None)
    if not (_is_count(count) and _is_count(last)):
        return None
    return End(type(schedule).__name__, int(count), int(last), found[1])


def _end_of_sequence(schedule: Any) -> End | None:
    """The last part of a sequential schedule counts from the last milestone on."""
    parts, milestones = getattr(schedule, "_schedulers", ()), getattr(schedule, "_milestones", ())
    part = end_of(parts[-1]) if parts else None
    count = getattr(schedule, "last_epoch", None)
    if part is None or not milestones or not _is_count(count) or not _is_count(milestones[-1]):
        return None
    return End(f"SequentialLR of {part.kind}", int(count), int(milestones[-1]) + part.last, part.past_end)


def _is_count(value: object) -> TypeGuard[float]:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool)
