"""After which reports a check restores. Pure functions.

Some restores are made no matter how long the check takes: at the ends of the run, and where the study itself
pauses. One before the end finds a count that ends the script, such as a patience; one at the end finds a script
that keeps training; the first finds most of what is not saved. Next comes one per variable, while the variable
holds something that a fresh start does not have. The others are a sample: where the script saves while it runs,
in further such phases, and in between.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from headrace.check.snapshot import LEAST, Phase

STRAIGHT_SHARE = 3
"""The straight run is cut after this fraction (one in N) of the time limit."""
RESTORES = 10
"""How many restores are made, with those of the sample, if no number of steps is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The reported steps after which to restore."""

    # All of them, the most informative first.
    order: tuple[int, ...]
    # Those that are made no matter how long they take.
    always: frozenset[int] = frozenset()
    # Those with a specific reason: the study pauses there, or a variable holds something that a restore may lose.
    pointed_at: frozenset[int] = frozenset()

    def first(self, count: int) -> tuple[int, ...]:
        """The `count` most informative ones, but at least those that are always made; ascending."""
        return tuple(sorted(self.order[: max(count, len(self.always))]))


def planned(
    steps: Sequence[int],
    *,
    ends_by_itself: bool,
    pauses: Collection[int] = (),
    saves: Collection[int] = (),
    phases: Sequence[Phase] = (),
) -> Plan:
    """Where to restore in a run that reported these steps.

    The last step is included only if the script ends there by itself: a trial may be resumed from there. A study
    `pauses` a trial at the first report of a step or a later one; the script `saves` at other steps.
    """
    found = possible(steps, ends_by_itself=ends_by_itself)
    if not found:
        return Plan(order=())
    at_ends = (found[-1], found[0], *found[-2:-1])
    paused = _reports(found, pauses)
    order = dict.fromkeys((*at_ends, *_spread(paused, RESTORES)))
    always = frozenset(order)
    order |= dict.fromkeys(paused)
    of_variable: dict[str, list[Phase]] = {}
    for phase in phases:
        of_variable.setdefault(phase.variable, []).append(phase)
    held = _last_of_each((_telling_part(one[0]) for one in of_variable.values()), order, found)
    order |= dict.fromkeys(held)
    saved = _reports(found, saves)
    order |= dict.fromkeys(saved if len(saved) <= RESTORES else ())
    sample = dict(order)
    sample |= dict.fromkeys(found[1:2])
    before_end = (replace(one[0], last=one[0].last - 1) for one in of_variable.values() if one[0].changes)
    rest = (_telling_part(phase) for one in of_variable.values() for phase in one[1:])
    for more in (before_end, rest):
        sample |= dict.fromkeys(_last_of_each(more, sample, found))
    for places in (saved, found):
        left = [step for step in places if step not in sample]
        sample |= dict.fromkeys(_middle_first(_spread(left, max(0, RESTORES - len(sample)))))
    return Plan(
        order=tuple(sample)[: max(RESTORES, len(order))],
        always=always,
        pointed_at=frozenset((*paused, *held)),
    )


def possible(steps: Sequence[int], *, ends_by_itself: bool) -> tuple[int, ...]:
    """The reported steps after which a trial can pause."""
    return tuple(steps if ends_by_itself else steps[:-1])


def saved_at(steps: Sequence[int], every: int | None, rungs: Collection[int]) -> tuple[int, ...]:
    """The reported steps at which `t.steps(checkpoint_every=...)` and the rungs of the study save."""
    due = set(_reports(steps, rungs))
    found, saved = [], 0
    for step in steps:
        if step in due or (every is not None and step - saved >= every):
            found.append(step)
            saved = step
    return tuple(found)


def affordable(wanted: int, *, limit_s: float, spent_s: float, train_s: float) -> int:
    """How many of `wanted` restores fit in the time limit after a straight run of `spent_s`, which trained for
    `train_s`.

    Each restore costs the start of a process; the resumed run trains as long as the straight one.
    """
    start_s = max(spent_s - train_s, 0.0)
    left_s = limit_s - spent_s - train_s
    return min(wanted, max(LEAST, int(left_s / start_s) if start_s > 0 else wanted))


def limit_for_all(
    restores: int, *, tried_s: float, straight_s: float, train_s: float, share: float, process_s: float
) -> int:
    """The time limit, in seconds, that covers everything: at this run's speed plus half, in whole minutes.

    The straight run took `straight_s`, of which it trained `train_s` for a `share` of the budget. Each process
    of the resumed run took `process_s`. The result is larger than the limit `tried_s`, whatever else took time.
    """
    whole_s = train_s / share
    needed_s = max(STRAIGHT_SHARE * whole_s, straight_s + 2 * whole_s + (restores + 1) * process_s)
    return 60 * ceil(max(1.5 * needed_s, 2 * tried_s) / 60)


def _reports(found: Sequence[int], steps: Iterable[int]) -> list[int]:
    """The first reports of these steps or later ones."""
    places = {bisect_left(found, step) for step in steps}
    return [found[place] for place in sorted(places) if place < len(found)]


def _telling_part(phase: Phase) -> Phase:
    """Where in a phase a restore shows what it loses. A variable that changes loses the most at the end. A
    variable that keeps one value is set at the start, and may be reset before it is read in the step after the
    phase: a restore at the end of such a phase changes nothing.
    """
    return phase if phase.changes else replace(phase, last=phase.first + (phase.last - phase.first) // 4)


def _last_of_each(phases: Iterable[Phase], made: Collection[int], found: Sequence[int]) -> list[int]:
    """The fewest steps that cover all phases without a restore, each at the end of a phase, where the variable
    holds the most.
    """
    chosen = [*made]
    for phase in sorted(phases, key=lambda phase: (phase.last, phase.first)):
        inside = [step for step in found[bisect_left(found, phase.first) :] if step <= phase.last]
        if inside and not any(phase.first <= step <= phase.last for step in chosen):
            chosen.append(inside[-1])
    return chosen[len(made) :]


def _spread(places: Sequence[int], most: int) -> list[int]:
    """At most this many of the places, as far apart as possible."""
    if len(places) <= most:
        return [*places]
    return [places[(2 * place + 1) * len(places) // (2 * most)] for place in range(most)]


def _middle_first(places: Sequence[int]) -> list[int]:
    """The places in an order whose every prefix is spread over all of them."""
    order: list[int] = []
    parts = [list(places)]
    while parts:
        part = parts.pop(0)
        if part:
            middle = len(part) // 2
            order.append(part[middle])
            parts += [part[:middle], part[middle + 1 :]]
    return order
