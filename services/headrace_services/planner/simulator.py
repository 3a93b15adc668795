"""A discrete-event simulation of one iteration: when every pass of every micro-batch starts and ends.

A stage runs its steps in the order of the schedule, each as soon as the stage is free and its input has arrived. A
forward pass needs the forward pass of the previous stage; a backward pass needs the forward pass of its own stage
and the backward pass of the next stage. Receiving is part of the receiving pass, because it blocks the stage in
Megatron-LM and DeepSpeed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace_services.planner.schedules import Pass, Schedule, Step, order


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of a stage per micro-batch. With v chunks each chunk takes 1/v unless `chunks` says otherwise."""

    forward_s: float
    backward_s: float
    weight_s: float = 0.0
    """The part of `backward_s` for weight gradients; only zero-bubble schedules separate it."""
    tail_s: float = 0.0
    """After the last backward: gradient collectives and the optimizer's step."""

    @property
    def total_s(self) -> float:
        """T_j."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class Event:
    """A step with its times."""

    step: Step
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """An iteration as it would run."""

    total_s: float
    orders: tuple[tuple[Step, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]
    """When each step of `orders` ends."""
    durations: tuple[Mapping[Pass, float], ...]

    @property
    def pipeline_s(self) -> float:
        """When the last pass ends, before tails."""
        return max(row[-1] for row in self.ends_s)

    @property
    def bubble_share(self) -> float:
        """The share of stage time that is idle before the last pass ends."""
        pairs = zip(self.orders, self.durations, strict=True)
        busy = sum(durations[step.kind] for steps, durations in pairs for step in steps)
        return 1.0 - busy / (self.pipeline_s * len(self.orders))

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Per stage, the most micro-batches (or chunks of them) between their forward pass and the pass that frees
        them.

        Steps run one after another, so counting in their order is counting in time.
        """
        return tuple(_peak(steps) for steps in self.orders)

    def events(self, stage: int) -> list[Event]:
        """The steps of a stage with their times."""
        durations = self.durations[stage]
        return [
            Event(step, end - durations[step.kind], end)
            for step, end in zip(self.orders[stage], self.ends_s[stage], strict=True)
        ]


def simulate(
    schedule: Schedule, stages: Sequence[StageTimes], micro_batches: int, chunks: int = 1
) -> Simulation:
    """Runs the schedule. O(s·µ·v). Raises ValueError for an interleaving that the schedule does not define."""
    s = len(stages)
    if schedule is not Schedule.INTERLEAVED or s == 1:
        chunks = 1
    elif micro_batches % s:
        raise ValueError(
            f"interleaving needs micro-batches in groups of {s} stages, and {micro_batches} are not"
        )
    plain = Schedule.ONE_F_ONE_B if s == 1 and schedule is Schedule.INTERLEAVED else schedule
    orders = [order(plain, j, s, micro_batches, chunks) for j in range(s)]
    durations = tuple(_durations(plain, stage, chunks) for stage in stages)
    ends = _run(plain, orders, durations, micro_batches, chunks)
    return Simulation(
        total_s=max(ends[j][-1] + stages[j].tail_s for j in range(s)),
        orders=tuple(map(tuple, orders)),
        ends_s=tuple(map(tuple, ends)),
        durations=durations,
    )


def _run(
    schedule: Schedule,
    orders: Sequence[Sequence[Step]],
    durations: Sequence[Mapping[Pass, float]],
    micro_batches: int,
    chunks: int,
) -> list[list[float]]:
    """When every step of every stage ends. A stage runs until an input is missing, and continues when it has
    arrived."""
    s = len(orders)
    last = s * chunks - 1
    never = -1.0
    down = [[never] * micro_batches for _ in range(last + 1)]
    back = [[never] * micro_batches for _ in range(last + 1)]
    ends: list[list[float]] = [[] for _ in range(s)]
    free = [0.0] * s
    ready = list(range(s))
    times = [tuple(durations[j][kind] for kind in Pass) for j in range(s)]
    asleep = [False] * s
    while ready:
        j = ready.pop()
        asleep[j] = False
        mine, steps, now = ends[j], orders[j], free[j]
        forward_s, backward_s, weight_s = times[j]
        for position in range(len(mine), len(steps)):
            kind, i, chunk = steps[position]
            place = chunk * s + j
            if kind is Pass.FORWARD:
                arrived = down[place - 1][i] if place else 0.0
                if arrived < 0.0:
                    asleep[j] = True
                    break
                now = (arrived if arrived > now else now) + forward_s
                down[place][i] = now
                other = (j + 1) % s
            elif kind is Pass.BACKWARD:
                arrived = back[place + 1][i] if place < last else down[place][i]
                if arrived < 0.0 or down[place][i] < 0.0:
                    asleep[j] = True
                    break
                now = (arrived if arrived > now else now) + backward_s
                back[place][i] = now
                other = j - 1 if j else s - 1
            else:
                now += weight_s
                other = j
            mine.append(now)
            if asleep[other] and other != j:
                asleep[other] = False
                ready.append(other)
        free[j] = now
    if any(len(ends[j]) < len(orders[j]) for j in range(s)):
        raise ValueError(f"the schedule {schedule} waits for itself")
    return ends


def lower_bound_s(
    schedule: Schedule, stages: Sequence[StageTimes], micro_batches: int, chunks: int = 1
) -> float:
    """A lower bound for any run of these passes: max_j [Σ_{i<j}(F_i + B_i) + µ(F_j + B_j)], plus the tails.

    Stage j cannot start before the first micro-batch has passed the stages before it, and it must do all its work.
    Then its last input gradient must pass back through them. Weight gradients may be left to the very end.
    """
    v = chunks if schedule is Schedule.INTERLEAVED and len(stages) > 1 else 1
    parted = schedule is Schedule.ZERO_BUBBLE
    best = down = back = 0.0
    for stage in stages:
        later = stage.weight_s if parted else 0.0
        best = max(best, down / v + micro_batches * stage.total_s + stage.tail_s)
        through = down / v + micro_batches * (stage.total_s - later) + back / v
        best = max(best, through + stages[0].tail_s)
        down += stage.forward_s
        back += stage.backward_s - later
    return best


def closed_form_s(
    stages: Sequence[StageTimes], micro_batches: int, fill: tuple[float, float] = (1.0, 0.0)
) -> float:
    """Σ(α·T_j − ω·W_j) + max_j[(µ − α)·T_j + tail_j]; α and ω from `schedules.fill_share`. Exact for equal stages."""
    alpha, omega = fill
    filling = sum(alpha * stage.total_s - omega * stage.weight_s for stage in stages)
    return filling + max((micro_batches - alpha) * stage.total_s + stage.tail_s for stage in stages)


def paper_s(stages: Sequence[StageTimes], micro_batches: int) -> float:
    """µ·max T_j, the approximation of H²O's level 2, for comparison: it ignores filling and draining."""
    return micro_batches * max(stage.total_s for stage in stages)


def _durations(schedule: Schedule, stage: StageTimes, chunks: int) -> dict[Pass, float]:
    weight = stage.weight_s if schedule is Schedule.ZERO_BUBBLE else 0.0
    return {
        Pass.FORWARD: stage.forward_s / chunks,
        Pass.BACKWARD: (stage.backward_s - weight) / chunks,
        Pass.WEIGHT: weight / chunks,
    }


def _peak(steps: Sequence[Step]) -> int:
    frees = Pass.WEIGHT if any(step.kind is Pass.WEIGHT for step in steps) else Pass.BACKWARD
    alive = peak = 0
    for step in steps:
        alive += (step.kind is Pass.FORWARD) - (step.kind is frees)
        peak = max(peak, alive)
    return peak
