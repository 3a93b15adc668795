"""How many trials of a study share a process: from what was measured, and from processes that ran out of memory.

A study with `fuse` has a profile for each kind of device and each key (`Fuse.key`). It is written with the reports and
exits that teach it, and read when trials are placed:

    turns   the time of a turn and the memory of the process, by number of members
    most    half the members of the process that ran out of memory; it only gets smaller

A number that the study gives is taken as it is, and only `most` bounds it. With `auto` the number starts at START. It
doubles while twice the members do RISE times as many steps a second. Then it is the knee: the least number of members
that does KNEE of the most steps a second that were measured. Beyond the knee members cost memory and gain little. The
numbers are those of `headrace_torch.hydro.plan_capacity`, which measures the same of groups without a study.

Memory is a straight line through what was measured, and a MARGIN of the device's is kept free. Of one measurement
nothing is known about the part that all members share, so each is taken to need its part of it all.
"""

from collections.abc import Mapping
from statistics import linear_regression

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.spec.fuse import Fuse

START = 2
"""How many trials a bundle holds before anything is measured: on a CPU a lone member is padded to two."""
TRUSTED = 3
"""A number of members counts as measured after so many turns: the first ones probe and compile."""
ENOUGH = 16
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


class Measured(Struct, frozen=True, kw_only=True):
    """What is known of turns with one number of members."""

    turns: int = 0
    time_s: float = 0.0
    """Of a turn: the least."""
    memory_bytes: int = 0
    """The most."""


class Profile(Struct, frozen=True, kw_only=True):
    """What a study knows of its bundles on one kind of device, with one key."""

    device: str
    key: str
    turns: Mapping[int, Measured] = field(default_factory=dict)
    """By number of members."""
    most: int | None = None
    """None: no process ran out of memory."""

    def learn(self, cost: TurnCost) -> "Profile":
        """Take a measurement in; the same profile where it is known well enough, or no measurement."""
        known = self.turns.get(cost.members, Measured())
        if cost.members < 1 or cost.time_s <= 0 or known.turns >= ENOUGH:
            return self
        each_s = cost.time_s / max(1, cost.turns)
        now = Measured(
            turns=known.turns + max(1, cost.turns),
            time_s=min(each_s, known.time_s or each_s),
            memory_bytes=max(known.memory_bytes, cost.memory_bytes),
        )
        return replace(self, turns={**self.turns, cost.members: now})

    def halved(self, members: int) -> "Profile":
        """A process with so many members, two or more, ran out of memory; twice the same lesson is one."""
        half = max(1, members // 2)
        return replace(self, most=half if self.most is None else min(self.most, half))

    @property
    def trusted(self) -> dict[int, Measured]:
        """What was measured often enough, the fewest members first."""
        return {n: self.turns[n] for n in sorted(self.turns) if self.turns[n].turns >= TRUSTED}


class Capacity(Struct, frozen=True, kw_only=True):
    """How many trials may share a process."""

    trials: int
    """Now."""
    seats: int
    """How many seats a bundle begins with: with `auto` as many as it may ever have."""
    why: str
    """Of `trials`, in words."""


def capacity(fuse: Fuse, profile: Profile, memory_bytes: int) -> Capacity:
    """How many trials may share a process on a device with so much memory; 0 where that is not known."""
    bound, why = fuse.most, f"at most {fuse.most} as the study says"
    if profile.most is not None and profile.most < bound:
        bound, why = profile.most, "half of those with whom a process ran out of memory"
    if not fuse.auto:
        return Capacity(trials=bound, seats=bound, why=why)
    fitting = _fitting(profile, memory_bytes)
    ceiling, said = bound, why
    if fitting is not None and fitting < ceiling:
        ceiling, said = max(1, fitting), f"as many as fit {_gib(memory_bytes)} of memory"
    wanted, reason = _wanted(profile)
    if wanted > ceiling:
        wanted, reason = ceiling, f"{said}; {reason}"
    return Capacity(trials=wanted, seats=bound, why=reason)


def _wanted(profile: Profile) -> tuple[int, str]:
    """How many members pay, and why."""
    rates = {n: n / known.time_s for n, known in profile.trusted.items()}
    if not rates:
        return START, f"nothing is measured yet: a bundle starts with {START}"
    widest = max(rates)
    half = max((n for n in rates if n <= widest // 2), default=None)
    if half is None or rates[widest] >= RISE * rates[half]:
        than = "" if half is None else f", {half} do {rates[half]:.3g}"
        return max(
            START, 2 * widest
        ), f"{widest} do {rates[widest]:.3g} steps a second{than}: more may do more"
    knee = min(n for n, rate in rates.items() if rate >= KNEE * max(rates.values()))
    beside = "" if knee == widest else f", and {widest} do {rates[widest]:.3g}"
    return knee, f"{knee} do {rates[knee]:.3g} steps a second{beside}: more gain little"


def _fitting(profile: Profile, memory_bytes: int) -> int | None:
    """How many members the memory allows; None where nothing is known of it."""
    points = {n: known.memory_bytes for n, known in profile.trusted.items() if known.memory_bytes}
    if not points or not memory_bytes:
        return None
    if len(points) == 1:
        ((members, held),) = points.items()
        each, shared = held / members, 0.0
    else:
        each, shared = linear_regression(list(points), list(points.values()))
    return int((memory_bytes * (1 - MARGIN) - shared) / each) if each > 0 else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
