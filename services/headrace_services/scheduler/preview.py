"""What a spec would cost, before anything is spent.

The production policy is run on a virtual clock: an event heap of slots, the trials' values in random order. A trial
keeps its value at all rungs, and a step takes one unit of time. The figures are means over a few fixed seeds, so the
same spec always gets the same preview. Beyond `SIMULATED` trials the counts at the rungs grow in proportion, so the
preview of a very large study costs no more than one of that size.
"""

import heapq
import random
from dataclasses import dataclass

from headrace.spec import StudySpec
from headrace_services.scheduler.policies import Action, RungResult, make_policy
from headrace_services.scheduler.samplers import Params, make_sampler

SIMULATED = 1000
_RUNS_SMALL = 5
_RUNS_LARGE = 3
_SMALL = 200
_SAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRung:
    """What is expected at one rung: trials recorded there, and the steps they spent since the rung before."""

    bracket: int
    rung: int
    milestone: int
    trials: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a study is expected to do. Times are None where the seconds per step are unknown."""

    trials: int
    rungs: tuple[PreviewRung, ...]
    steps: int
    steps_run_all: int
    slots: int
    wall_time_s: float | None
    slot_time_s: float | None
    samples: tuple[Params, ...]


@dataclass(slots=True)
class _Run:
    """The outcome of one simulated study."""

    recorded: dict[tuple[int, int], int]
    end: int


def preview(spec: StudySpec, slots: int, seconds_per_step: float | None = None) -> Preview:
    """The preview of a spec on so many parallel slots (at least 1, at most what the spec allows)."""
    slots = max(1, min(slots, spec.max_parallel) if spec.max_parallel else slots)
    trials = expected_trials(spec)
    simulated = min(trials, SIMULATED)
    repeats = _RUNS_SMALL if simulated <= _SMALL else _RUNS_LARGE
    runs = [_simulate(spec, simulated, slots, seed) for seed in range(repeats)]
    scale = trials / simulated if simulated else 0.0
    rungs = _rungs(spec, runs, scale)
    baseline = spec.max_steps if spec.baseline is not None else 0
    steps = sum(rung.steps for rung in rungs) + baseline
    wall_steps = sum(run.end for run in runs) / len(runs) * max(scale, 1.0)
    known = seconds_per_step is not None and seconds_per_step > 0
    return Preview(
        trials=trials,
        rungs=rungs,
        steps=steps,
        steps_run_all=trials * spec.max_steps + baseline,
        slots=slots,
        wall_time_s=wall_steps * seconds_per_step if known and seconds_per_step else None,
        slot_time_s=steps * seconds_per_step if known and seconds_per_step else None,
        samples=_samples(spec),
    )


def expected_trials(spec: StudySpec) -> int:
    """How many configurations will be tried, the baseline not counted: a grid may have fewer than asked for."""
    size = make_sampler(spec).size
    return spec.max_trials if size is None else min(spec.max_trials, len(spec.enqueued) + size)


def _samples(spec: StudySpec) -> tuple[Params, ...]:
    sampler = make_sampler(spec)
    drawn = (sampler.suggest(number) for number in range(min(_SAMPLES, spec.max_trials)))
    return tuple(params for params in drawn if params is not None)


def _rungs(spec: StudySpec, runs: list[_Run], scale: float) -> tuple[PreviewRung, ...]:
    policy = make_policy(spec)
    rungs: list[PreviewRung] = []
    for bracket in range(policy.brackets):
        before = 0
        for rung, milestone in enumerate(policy.ladder(bracket)):
            recorded = sum(run.recorded.get((bracket, rung), 0) for run in runs) / len(runs)
            trials = round(recorded * scale)
            rungs.append(
                PreviewRung(
                    bracket=bracket,
                    rung=rung,
                    milestone=milestone,
                    trials=trials,
                    steps=trials * (milestone - before),
                )
            )
            before = milestone
    return tuple(rungs)


def _simulate(spec: StudySpec, trials: int, slots: int, seed: int) -> _Run:
    """One study on a virtual clock. Trial numbers begin at 1 where a baseline has 0."""
    policy = make_policy(spec)
    first = 1 if spec.baseline is not None else 0
    values = random.Random(seed).sample(range(trials), trials)  # noqa: S311  (no secret)
    run = _Run(recorded={}, end=0)
    # (when, order of start, trial, rung it arrives at); the baseline is trial -1
    arrivals: list[tuple[int, int, int, int]] = []
    started = 0
    new = 0
    clock = 0

    def start(trial: int, bracket: int, rung: int) -> None:
        nonlocal started
        ladder = policy.ladder(bracket)
        heapq.heappush(
            arrivals, (clock + ladder[rung] - (ladder[rung - 1] if rung else 0), started, trial, rung)
        )
        started += 1

    def fill() -> None:
        nonlocal new
        while len(arrivals) < slots:
            promotion = policy.next_promotion(more=new < trials)
            if promotion is not None:
                policy.promoted(promotion.trial, promotion.bracket, promotion.rung)
                start(promotion.trial, promotion.bracket, promotion.rung + 1)
            elif new < trials:
                start(new, brackets[new], 0)
                new += 1
            else:
                return

    brackets = [policy.bracket(first + trial) for trial in range(trials)]
    for trial, bracket in enumerate(brackets):
        policy.joined(trial, bracket, {})
    if first:
        arrivals.append((spec.max_steps, -1, -1, 0))
    fill()
    while arrivals:
        clock, _, trial, rung = heapq.heappop(arrivals)
        if trial >= 0:
            bracket = brackets[trial]
            ladder = policy.ladder(bracket)
            arrival = run.recorded.get((bracket, rung), 0) + 1
            run.recorded[bracket, rung] = arrival
            policy.record(
                RungResult(
                    trial=trial,
                    bracket=bracket,
                    rung=rung,
                    milestone=ladder[rung],
                    step=ladder[rung],
                    value=float(values[trial]),
                    arrival=arrival,
                )
            )
            if rung < len(ladder) - 1 and policy.verdict(trial, bracket, rung).action is Action.CONTINUE:
                policy.promoted(trial, bracket, rung)
                start(trial, bracket, rung + 1)
        fill()
    run.end = clock
    return run
