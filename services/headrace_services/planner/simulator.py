"""A discrete-event simulation of one iteration: when every pass of every micro-batch starts and ends.

A stage runs its steps in the order of the schedule, each as soon as the stage is free and its input is there. A
forward needs the forward of the stage before; a backward needs the forward of its own stage and the backward of the
stage behind. Receiving is part of the receiving pass, as it blocks the stage in Megatron-LM and DeepSpeed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_services.planner.schedules import Pass, Schedule, Step, order


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of a stage per micro-batch. With v chunks each chunk takes 1/v unless `chunks` says otherwise."""

    forward_s: float
    backward_s: float
    weight_s: float = 0.0
    """The part of `backward_s` for weight gradients; only zero-bubble schedules part it."""
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
    stages: tuple[tuple[Event, ...], ...]
    peak_in_flight: tuple[int, ...]
    """Per stage, the most micro-batches (or chunks of them) between their forward and the pass that frees them."""

    @property
    def pipeline_s(self) -> float:
        """When the last pass ends, before tails."""
        return max(events[-1].end_s for events in self.stages)

    @property
    def bubble_share(self) -> float:
        """Share of stage time that is idle before the last pass ends."""
        busy = sum(event.end_s - event.start_s for events in self.stages for event in events)
        return 1.0 - busy / (self.pipeline_s * len(self.stages))


def simulate(
    schedule: Schedule, stages: Sequence[StageTimes], micro_batches: int, chunks: int = 1
) -> Simulation:
    """Runs the schedule. O(s·µ·v). Raises ValueError for an interleaving that the schedule does not define."""
    s = len(stages)
    if schedule is not Schedule.INTERLEAVED or s == 1:
        chunks = 1
    elif micro_batches % s:
        raise ValueError(f"interleaving needs micro-batches in groups of {s} stages, and {micro_batches} are not")
    plain = Schedule.ONE_F_ONE_B if s == 1 and schedule is Schedule.INTERLEAVED else schedule
    orders = [order(plain, j, s, micro_batches, chunks) for j in range(s)]
    durations = [_durations(plain, stage, chunks) for stage in stages]
    ends: dict[tuple[Pass, int, int], float] = {}
    events: list[list[Event]] = [[] for _ in range(s)]
    free = [0.0] * s
    position = [0] * s
    ready = list(range(s))
    last = s * chunks - 1
    waiting: dict[tuple[Pass, int, int], int] = {}
    while ready:
        j = ready.pop()
        steps, duration = orders[j], durations[j]
        while position[j] < len(steps):
            step = steps[position[j]]
            place = step.chunk * s + j
            needs = _needs(step, place, last)
            missing = next((key for key in needs if key not in ends), None)
            if missing is not None:
                waiting[missing] = j
                break
            start = max([free[j], *(ends[key] for key in needs)])
            end = start + duration[step.kind]
            key = (step.kind, step.micro_batch, place)
            free[j] = ends[key] = end
            events[j].append(Event(step, start, end))
            position[j] += 1
            if key in waiting:
                ready.append(waiting.pop(key))
    if any(position[j] < len(orders[j]) for j in range(s)):
        raise ValueError("the schedule waits for itself")
    return Simulation(
        total_s=max(free[j] + stages[j].tail_s for j in range(s)),
        stages=tuple(tuple(row) for row in events),
        peak_in_flight=tuple(_peak(row) for row in events),
    )


def lower_bound_s(
    schedule: Schedule, stages: Sequence[StageTimes], micro_batches: int, chunks: int = 1
) -> float:
    """No run of these passes is faster: max_j [Σ_{i<j}(F_i + B_i) + µ(F_j + B_j)], and the tails.

    Stage j cannot start before the first micro-batch has come through the stages before it and must do all its work;
    and its last input gradient must go back through them. Weight gradients may be left for the very end."""
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
    """µ·max T_j, the approximation of H²O's level 2, for comparison: it forgets filling and draining."""
    return micro_batches * max(stage.total_s for stage in stages)


def _durations(schedule: Schedule, stage: StageTimes, chunks: int) -> dict[Pass, float]:
    weight = stage.weight_s if schedule is Schedule.ZERO_BUBBLE else 0.0
    return {
        Pass.FORWARD: stage.forward_s / chunks,
        Pass.BACKWARD: (stage.backward_s - weight) / chunks,
        Pass.WEIGHT: weight / chunks,
    }


def _needs(step: Step, place: int, last: int) -> tuple[tuple[Pass, int, int], ...]:
    i = step.micro_batch
    match step.kind:
        case Pass.FORWARD:
            return ((Pass.FORWARD, i, place - 1),) if place else ()
        case Pass.BACKWARD:
            behind = ((Pass.BACKWARD, i, place + 1),) if place < last else ()
            return ((Pass.FORWARD, i, place), *behind)
        case Pass.WEIGHT:
            return ((Pass.BACKWARD, i, place),)


def _peak(events: Sequence[Event]) -> int:
    """Steps run one after the other, so counting in their order is counting in time."""
    frees = Pass.WEIGHT if any(event.step.kind is Pass.WEIGHT for event in events) else Pass.BACKWARD
    alive = peak = 0
    for event in events:
        alive += (event.step.kind is Pass.FORWARD) - (event.step.kind is frees)
        peak = max(peak, alive)
    return peak


