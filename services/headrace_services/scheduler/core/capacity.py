"""How many trials of a study share a process: from what was measured, and from processes that ran out of memory.

A study with `fuse` has a profile for each kind of device and each key (`Fuse.key`). It is written with the reports and
exits that teach it, and read when trials are placed:

    steady  the time of a turn and the memory of the process, by number of members
    fresh   the same of turns before which trials joined or left: these take longer, and are compared with each other
    most    half the members of the process that ran out of memory; it only gets smaller
    first   what the first step of a process took

A number that the study gives is taken as it is, and only `most` bounds it. With `auto` the number starts at START. It
doubles while twice the members do RISE times as many steps a second. Where they do not, more turns are measured, as a
few may have been slow by chance: up to ENOUGH. Then the number is the knee: the least one that does KNEE of the most
steps a second that were measured. Beyond the knee members cost memory and gain little. Steady and fresh turns may come
to different numbers. The larger one is taken: more members pay at least where the study's turns are of that sort.

Memory is a straight line through what was measured, and a MARGIN of the device's is kept free. Of one measurement
nothing is known about the part that all members share, so each is taken to need its part of it all.
"""

from collections.abc import Mapping
from statistics import linear_regression

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.spec.fuse import START, Fuse

__all__ = ["ENOUGH", "START", "Capacity", "FirstStep", "Profile", "TurnCost", "capacity"]

TRUSTED = 3
"""A number of members counts as measured after so many turns."""
ENOUGH = 10
"""After so many turns a number of members is not measured any further."""
RISE = 1.05
KNEE = 0.9
MARGIN = 0.1


class TurnCost(Struct, frozen=True, kw_only=True):
    """Turns of a bundle with the same number of members."""

    members: int
    turns: int
    time_s: float
    """Of all of them together."""
    memory_bytes: int = 0
    """The most that the process ever held; 0 where that was with more members."""
    fresh: bool = False
    """Whether trials joined or left right before each of them."""
    first_step_s: float = 0.0
    """The step at which the process looked at how to train its members together; 0 where nothing is new."""
    later_step_s: float = 0.0
    """The least of the steps that followed."""


class Measured(Struct, frozen=True, kw_only=True):
    """What is known of turns with one number of members."""

    turns: int = 0
    time_s: float = 0.0
    """Of a turn: the least."""
    memory_bytes: int = 0
    """The most."""


class FirstStep(Struct, frozen=True, kw_only=True):
    """What the first step of a process takes, beside a later one."""

    members: int
    time_s: float
    later_s: float


Turns = Mapping[int, Measured]
"""By number of members."""


class Profile(Struct, frozen=True, kw_only=True):
    """What a study knows of its bundles on one kind of device, with one key."""

    device: str
    key: str
    steady: Turns = field(default_factory=dict)
    fresh: Turns = field(default_factory=dict)
    most: int | None = None
    """None: no process ran out of memory."""
    first: FirstStep | None = None
    """The least of those with the most members. It is for people: no choice follows from it."""

    def learn(self, cost: TurnCost) -> "Profile":
        """Take a measurement in; the same profile where it is known well enough, or no measurement."""
        return self._learn_first(cost)._learn_turns(cost)

    def _learn_first(self, cost: TurnCost) -> "Profile":
        if cost.members < 1 or cost.first_step_s <= 0 or cost.later_step_s <= 0:
            return self
        now = FirstStep(members=cost.members, time_s=cost.first_step_s, later_s=cost.later_step_s)
        known = self.first
        if known is not None and (known.members, -known.time_s) >= (now.members, -now.time_s):
            return self
        return replace(self, first=now)

    def _learn_turns(self, cost: TurnCost) -> "Profile":
        turns = self.fresh if cost.fresh else self.steady
        known = turns.get(cost.members, Measured())
        if cost.members < 1 or cost.time_s <= 0 or known.turns >= ENOUGH:
            return self
        each_s = cost.time_s / max(1, cost.turns)
        now = Measured(
            turns=known.turns + max(1, cost.turns),
            time_s=min(each_s, known.time_s or each_s),
            memory_bytes=max(known.memory_bytes, cost.memory_bytes),
        )
        turns = {**turns, cost.members: now}
        return replace(self, fresh=turns) if cost.fresh else replace(self, steady=turns)

    def halved(self, members: int) -> "Profile":
        """A process with so many members, two or more, ran out of memory; twice the same lesson is one."""
        half = max(1, members // 2)
        return replace(self, most=half if self.most is None else min(self.most, half))

    @property
    def memory(self) -> dict[int, int]:
        """The most memory that a process held, by its members; the fewest first."""
        found: dict[int, int] = {}
        for turns in (self.steady, self.fresh):
            for members, known in trusted(turns).items():
                found[members] = max(found.get(members, 0), known.memory_bytes)
        return {members: found[members] for members in sorted(found) if found[members]}


def trusted(turns: Turns) -> dict[int, Measured]:
    """What was measured often enough, the fewest members first."""
    return {members: turns[members] for members in sorted(turns) if turns[members].turns >= TRUSTED}


class Capacity(Struct, frozen=True, kw_only=True):
    """How many trials may share a process."""

    trials: int
    """Now."""
    seats: int
    """How many seats a bundle begins with: with `auto` as many as it may ever have."""
    why: str
    """Of `trials`, in words."""
    member_bytes: int = 0
    """What each further member takes of memory; 0 where that is not known."""


def capacity(fuse: Fuse, profile: Profile, memory_bytes: int) -> Capacity:
    """How many trials may share a process on a device with so much memory; 0 where that is not known."""
    bound, why = fuse.most, f"at most {fuse.most} as the study says"
    if profile.most is not None and profile.most < bound:
        bound, why = profile.most, "half of those with whom a process ran out of memory"
    shared, each = _memory(profile)
    found = Capacity(trials=bound, seats=bound, why=why, member_bytes=round(each))
    if not fuse.auto:
        return found
    ceiling = bound
    if each and memory_bytes and (fitting := int((memory_bytes * (1 - MARGIN) - shared) / each)) < bound:
        ceiling, why = max(1, fitting), f"as many as fit {_gib(memory_bytes)} of memory"
    wanted, reason = _wanted(profile)
    if wanted > ceiling:
        wanted, reason = ceiling, f"{why}; {reason}"
    return replace(found, trials=wanted, why=reason)


def _wanted(profile: Profile) -> tuple[int, str]:
    """How many members pay, and why."""
    found = [_paying(turns) for turns in (profile.steady, profile.fresh) if trusted(turns)]
    start = (START, f"nothing is measured yet: a bundle starts with {START}")
    return max(found, key=lambda one: one[0], default=start)


def _paying(turns: Turns) -> tuple[int, str]:
    """The same by turns of one sort, of which some are known."""
    rates = {n: n / known.time_s for n, known in trusted(turns).items()}
    widest = max(rates)
    half = max((n for n in rates if n <= widest // 2), default=None)
    if half is None or rates[widest] >= RISE * rates[half]:
        than = "" if half is None else f", {half} do {rates[half]:.3g}"
        why = f"{widest} do {rates[widest]:.3g} steps a second{than}: more may do more"
        return max(START, 2 * widest), why
    if turns[widest].turns < ENOUGH:
        return (
            widest,
            f"{widest} do {rates[widest]:.3g} steps a second by current estimates, {half} do {rates[half]:.3g}",
        )
    knee = min(n for n, rate in rates.items() if rate >= KNEE * max(rates.values()))
    beside = "" if knee == widest else f", and {widest} do {rates[widest]:.3g}"
    return knee, f"{knee} do {rates[knee]:.3g} steps a second{beside}: more gain little"


def _memory(profile: Profile) -> tuple[float, float]:
    """The memory that all members share, and that of each; zeros where nothing is known of it."""
    points = profile.memory
    if not points:
        return 0.0, 0.0
    if len(points) == 1:
        ((members, held),) = points.items()
        return 0.0, held / members
    each, shared = linear_regression(list(points), list(points.values()))
    return shared, max(0.0, each)


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
