"""How many trials of a study share a process, judged from measurements and from processes that ran out of memory.

A study with `fuse` has a profile for each kind of device and each key (`Fuse.key`). Reports and exits update it,
and placing reads it:

    steady  the time of a turn and the memory of the process, by number of members
    fresh   the same for turns before which trials joined or left: they take longer, and are compared only with each
            other
    most    half the members of the process that ran out of memory; it never grows
    first   how long the first step of a process took

A number set by the study is used as it is, bounded only by `most`. With `auto` the number starts at START. It
doubles as long as twice the members do RISE times as many steps a second. If they do not, more turns are measured,
up to ENOUGH, because a few may have been slow by chance. Then the number is the knee: the smallest one that
reaches KNEE of the highest measured throughput in steps a second. Beyond the knee members cost memory and gain
little. If steady and fresh turns lead to different numbers, the larger one is used: more members pay off at least
where the study's turns are of that sort.

Memory is modelled as a straight line through the measurements, and a MARGIN of the device's memory is kept free. A
single measurement says nothing about the part that all members share, so the memory is split evenly among them.
"""

from collections.abc import Mapping
from statistics import linear_regression

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.spec.fuse import START, Fuse

__all__ = ["ENOUGH", "START", "Capacity", "FirstStep", "Profile", "TurnCost", "capacity"]

TRUSTED = 3
"""A number of members counts as measured after this many turns."""
ENOUGH = 10
"""After this many turns a number of members is not measured any further."""
RISE = 1.05
KNEE = 0.9
MARGIN = 0.1


class TurnCost(Struct, frozen=True, kw_only=True):
    """Turns of a bundle with the same number of members."""

    members: int
    turns: int
    time_s: float
    """The time of all these turns together."""
    memory_bytes: int = 0
    """The peak memory of the process; 0 if the peak occurred with more members."""
    fresh: bool = False
    """Whether trials joined or left right before each of these turns."""
    first_step_s: float = 0.0
    """The time of the step at which the process worked out how to train its members together; 0 if there is no new
    one."""
    later_step_s: float = 0.0
    """The shortest of the steps that followed."""


class Measured(Struct, frozen=True, kw_only=True):
    """What is known about turns with one number of members."""

    turns: int = 0
    time_s: float = 0.0
    """The shortest time of a turn."""
    memory_bytes: int = 0
    """The peak memory."""


class FirstStep(Struct, frozen=True, kw_only=True):
    """How long the first step of a process takes, compared with a later one."""

    members: int
    time_s: float
    later_s: float


Turns = Mapping[int, Measured]
"""Measurements by number of members."""


class Profile(Struct, frozen=True, kw_only=True):
    """What a study knows about its bundles on one kind of device, with one key."""

    device: str
    key: str
    steady: Turns = field(default_factory=dict)
    fresh: Turns = field(default_factory=dict)
    most: int | None = None
    """None if no process ran out of memory."""
    first: FirstStep | None = None
    """The shortest first step with the most members. It is shown to users only: no decision depends on it."""

    def learn(self, cost: TurnCost) -> "Profile":
        """Add a measurement. Returns the same profile if that number of members is known well enough, or nothing
        was measured."""
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
        """Record that a process with this many members, two or more, ran out of memory. Idempotent."""
        half = max(1, members // 2)
        return replace(self, most=half if self.most is None else min(self.most, half))

    @property
    def memory(self) -> dict[int, int]:
        """The peak memory of a process by its number of members, in ascending order."""
        found: dict[int, int] = {}
        for turns in (self.steady, self.fresh):
            for members, known in trusted(turns).items():
                found[members] = max(found.get(members, 0), known.memory_bytes)
        return {members: found[members] for members in sorted(found) if found[members]}


def trusted(turns: Turns) -> dict[int, Measured]:
    """What was measured often enough, by number of members in ascending order."""
    return {members: turns[members] for members in sorted(turns) if turns[members].turns >= TRUSTED}


class Capacity(Struct, frozen=True, kw_only=True):
    """How many trials may share a process."""

    trials: int
    """How many now."""
    seats: int
    """How many seats a new bundle has: with `auto`, as many as it may ever need."""
    why: str
    """Why `trials` is this number, in words."""
    member_bytes: int = 0
    """The memory that each further member takes; 0 if unknown."""


def capacity(fuse: Fuse, profile: Profile, memory_bytes: int) -> Capacity:
    """Return how many trials may share a process on a device with this much memory; `memory_bytes` is 0 if
    unknown."""
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
    """How many members pay off, and why."""
    found = [_paying(turns) for turns in (profile.steady, profile.fresh) if trusted(turns)]
    start = (START, f"nothing is measured yet: a bundle starts with {START}")
    return max(found, key=lambda one: one[0], default=start)


def _paying(turns: Turns) -> tuple[int, str]:
    """The same for turns of one sort, some of which are measured."""
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
    """The memory that all members share and the memory of each; zeros if nothing is known."""
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
