"""How many members to fuse: memory and throughput against N, from a profile of a few small groups.

    memory      grows by the same amount with each member: m(N) = fixed + N · each, fitted to the profile
    time        t(N) of a step between profiled N by straight lines; beyond the last, with its slope
    throughput  N / t(N); it rises while kernels are too small for the machine, then stays

The profile doubles N until throughput stops rising. The knee is the smallest N that reaches 0.9 of the best
throughput that was seen and fits: beyond it, further members cost memory and gain little. It is measured, not
extrapolated; if throughput still rose at the last N, `rising` says so. The first step probes, and holds copies
meanwhile; its peak is what must fit.
"""

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace_torch.hydro.fuse.entry import fuse
from headrace_torch.hydro.fuse.errors import FuseError, MemoryBudgetError
from headrace_torch.hydro.fuse.group import Group
from headrace_torch.hydro.fuse.member import OptimizerName
from headrace_torch.hydro.fuse.memory import peak_bytes
from headrace_torch.hydro.fuse.running import EngineChoice
from headrace_torch.hydro.fuse.source import Source

START, LAST = 2, 64  # on a CPU a single member runs beside a dummy one, so a profile starts at two
KNEE = 0.9
RISE = 1.05  # throughput that rises by less for twice the members has stopped rising
MARGIN = 0.1
LARGEST = 4096  # members; more than this is never planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured group of N members.

    Attributes:
        members: N.
        step_bytes: peak memory of a step, with parameters, moments, buffers and gradients.
        first_bytes: peak memory of the first step, with its probe.
        seconds: time of a step.
    """

    members: int
    step_bytes: int
    first_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """y = fixed + each · N."""

    fixed: float
    each: float

    def at(self, members: int) -> float:
        """Returns y."""
        return self.fixed + self.each * members


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """What a profile predicts for other N.

    Attributes:
        points: the profile, by N.
        step: bytes of a step against N.
        first: bytes of the first step against N.
        budget_bytes: the memory to plan for, before the margin.
        most: the largest N whose first step fits the budget minus the margin.
        knee: the smallest N with 0.9 of the profile's best throughput, as far as it fits.
        rising: whether throughput still rose at the profile's last N: the knee may then be higher.
        engine: what ran the profile.
    """

    points: tuple[Point, ...]
    step: Line
    first: Line
    budget_bytes: int
    most: int
    knee: int
    rising: bool
    engine: str

    def memory_bytes(self, members: int) -> int:
        """Predicts the memory of a step."""
        return round(self.step.at(members))

    def seconds(self, members: int) -> float:
        """Predicts the time of a step."""
        return predicted_seconds(self.points, members)

    def throughput(self, members: int) -> float:
        """Predicts members' steps per second."""
        return members / self.seconds(members)

    def waves(self, members: int) -> list[int]:
        """Splits members into groups of even size, none larger than the knee."""
        count = -(-members // self.knee)
        return [members // count + (i < members % count) for i in range(count)]


def predicted_seconds(points: Sequence[Point], members: int) -> float:
    """Time of a step by linear interpolation of the profile, and by its last slope beyond it."""
    if members <= points[0].members:
        return points[0].seconds
    last = points[-1]
    for left, right in itertools.pairwise(points):
        if members <= right.members or right is last:
            slope = max(0.0, (right.seconds - left.seconds) / (right.members - left.members))
            return left.seconds + slope * (members - left.members)
    return last.seconds * members / last.members  # one point


def fitted(pairs: Sequence[tuple[int, float]]) -> Line:
    """The line that minimizes squared relative errors; through the origin with one point."""
    if len(pairs) == 1:
        return Line(fixed=0.0, each=pairs[0][1] / pairs[0][0])
    weights = [1 / y**2 for _, y in pairs]
    total = sum(weights)
    mean_n = sum(w * n for w, (n, _) in zip(weights, pairs, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, pairs, strict=True)) / total
    spread = sum(w * (n - mean_n) ** 2 for w, (n, _) in zip(weights, pairs, strict=True))
    each = sum(w * (n - mean_n) * (y - mean_y) for w, (n, y) in zip(weights, pairs, strict=True)) / spread
    return Line(fixed=mean_y - each * mean_n, each=each)


def plan(
    points: Sequence[Point], budget_bytes: int, *, margin: float = MARGIN, engine: str = "grouped"
) -> CapacityPlan:
    """Plans from a profile; pure.

    Raises:
        MemoryBudgetError: one member does not fit.
    """
    ordered = tuple(sorted(points, key=lambda one: one.members))
    step = fitted([(one.members, one.step_bytes) for one in ordered])
    first = fitted([(one.members, one.first_bytes) for one in ordered])
    usable = budget_bytes * (1 - margin)
    most = min(
        LARGEST, *(int((usable - line.fixed) / line.each + 1e-9) for line in (step, first) if line.each > 0)
    )
    if most < 1:
        raise MemoryBudgetError(
            f"one member needs about {max(step.at(1), first.at(1)) / 2**20:.1f} MiB and the budget is "
            f"{budget_bytes / 2**20:.1f} MiB, of which {margin:.0%} are kept free: use a smaller surrogate or batch"
        )
    rates = {n: n / predicted_seconds(ordered, n) for n in range(1, min(most, ordered[-1].members) + 1)}
    knee = next(n for n, rate in rates.items() if rate >= KNEE * max(rates.values()))
    rising = len(ordered) > 1 and most > ordered[-1].members and _rises(ordered[-2], ordered[-1])
    return CapacityPlan(
        points=ordered,
        step=step,
        first=first,
        budget_bytes=budget_bytes,
        most=most,
        knee=knee,
        rising=rising,
        engine=engine,
    )


def _rises(before: Point, now: Point) -> bool:
    return now.members / now.seconds >= RISE * before.members / before.seconds


def measure(group: Group, batch: Any, loss_fn: Any, *, rounds: int = 3) -> Point:
    """Measures a new group: its first step, then further steps; the shortest time and the peak memory count."""
    device, held = group.device, group.memory_bytes()

    def step() -> None:
        group.step(batch, loss_fn)

    first = held + peak_bytes(step, device)
    peaks = [peak_bytes(step, device) for _ in range(2)]  # a record may rarely miss events
    alone = device.type == "cpu" and torch.get_num_threads() == 1 and group.engine != "pool"
    clock = time.thread_time if alone else time.perf_counter
    times = []
    for _ in range(rounds):
        start = clock()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(clock() - start)
    return Point(members=len(group), step_bytes=held + max(peaks), first_bytes=first, seconds=min(times))


def available_bytes(device: torch.device) -> int:
    """Returns the memory that is free now: the device's, or the machine's."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free)
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        raise FuseError("this system does not report how much memory is free; pass budget_bytes")
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def plan_capacity(
    source: Source,
    member: Mapping[str, Any],
    batch: Any,
    loss_fn: Any,
    *,
    optimizer: OptimizerName = "adamw",
    device: torch.device | str | None = None,
    profile: Sequence[int] | None = None,
    budget_bytes: int | None = None,
    margin: float = MARGIN,
) -> CapacityPlan:
    """Profiles small groups and says how many members fit, and how many are worth it.

    Args:
        source: as for `fuse`.
        member: hyperparameters of a typical member.
        batch: a batch of the size that training will have.
        loss_fn: as for `Group.step`.
        optimizer: as for `fuse`.
        device: as for `fuse`.
        profile: the N to measure; None doubles from 2 until throughput stops rising, up to 64.
        budget_bytes: the memory to plan for; None means what is free now.
        margin: fraction of the budget that is kept free.

    Raises:
        MemoryBudgetError: one member does not fit.
    """

    def make(members: int, engine: EngineChoice) -> Group:
        return fuse(
            source, [member] * members, optimizer, engine=engine, workers=0, device=device, gate=False
        )

    sizes = list(profile or _doubling())
    with make(sizes[-1] if profile else START * 4, "auto") as trial:
        trial.step(batch, loss_fn)
        engine = trial.engine or "separate"
        budget = available_bytes(trial.device) if budget_bytes is None else budget_bytes
    points: list[Point] = []
    for n in sizes:
        if points and points[-1].first_bytes * n / points[-1].members > budget * (1 - margin):
            break
        with make(n, engine) as group:
            points.append(measure(group, batch, loss_fn))
        if profile is None and len(points) > 2 and not _rises(points[-2], points[-1]):
            break
    return plan(points, budget, margin=margin, engine=engine)


def _doubling() -> list[int]:
    sizes = [START]
    while sizes[-1] < LAST:
        sizes.append(2 * sizes[-1])
    return sizes
