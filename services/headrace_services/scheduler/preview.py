"""The cost of a spec, before any time is spent on it: a few small simulations (`simulator`) with its own policy.

The trials have the simulator's synthetic curves, a step takes one unit of time, and machines are alike and never
fail. The figures are means over fixed seeds, so the same spec always gets the same preview. The simulated size is
limited (`REPORTS`): beyond it the counts at the rungs grow in proportion, so the preview of a very large study
costs no more than one of that size.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.spec import Nsga2Sampler, Nsga3Sampler, OwnSampler, RandomSampler, Resources, StudySpec
from headrace.spec.resources import WHOLE
from headrace.spec.rungs import GeometricPolicy
from headrace_services.scheduler.analysis.figures import Preview, PreviewRung, PreviewSize
from headrace_services.scheduler.core.placement import sizes_differ
from headrace_services.scheduler.core.policies import make_policy
from headrace_services.scheduler.preview_beside import companions, size
from headrace_services.scheduler.samplers import Params, expected_trials, make_sampler
from headrace_services.scheduler.simulator.cluster import machines_for, most_slots
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

REPORTS = 1500
"""About how many reports are simulated, over all runs."""
_MOST_RUNS = 5
_MOST_TRIALS = 600
_FEWEST_TRIALS = 20
_SAMPLES = 5
_MOST_COUNTED = 5000
"""The number of configurations whose sizes are counted; beyond it the counts grow in proportion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The outcome of one simulated study."""

    recorded: Counter[tuple[int, int]]
    end_s: float
    slot_s: float
    """Time on slots, summed over all slots."""


def preview(
    spec: StudySpec,
    slots: int,
    seconds_per_step: float | None = None,
    target_seconds_per_step: float | None = None,
) -> Preview:
    """The preview of a spec on this many parallel slots (at least 1, at most what the spec allows).

    Without `target_seconds_per_step`, steps of targets take as long as those of the study.
    """
    connected = max(1, slots)
    slots = max(1, min(slots, spec.max_parallel) if spec.max_parallel else slots)
    trials = expected_trials(spec)
    simulated, repeats = _simulated(spec, trials)
    runs = [_simulate(spec, simulated, slots, seed) for seed in range(repeats)]
    scale = trials / simulated if simulated else 0.0
    rungs = _rungs(spec, runs, scale)
    baseline = spec.max_steps if spec.baseline is not None else 0
    steps = sum(rung.steps for rung in rungs) + baseline
    wall_steps = sum(run.end_s for run in runs) / len(runs) * max(scale, 1.0)
    shared = sizes_differ(spec) or spec.fuse is not None
    own_steps = steps * size(spec) / WHOLE
    slot_steps = scale * sum(run.slot_s for run in runs) / len(runs) if shared else own_steps
    step_s = seconds_per_step or None
    return Preview(
        trials=trials,
        rungs=rungs,
        steps=steps,
        steps_run_all=trials * spec.max_steps + baseline,
        slots=slots,
        wall_time_s=None if step_s is None else wall_steps * step_s,
        slot_time_s=None if step_s is None else slot_steps * step_s,
        samples=_samples(spec),
        sizes=_sizes(spec, trials),
        bundle_groups=_bundle_groups(spec, trials),
        companions=companions(spec, connected, step_s, target_seconds_per_step or step_s),
    )


def _simulated(spec: StudySpec, trials: int) -> tuple[int, int]:
    """How many trials to simulate, and how often."""
    rungs = len(make_policy(spec).ladder(0))
    # Halving leaves most trials at the first rung; with stopping rules, trials reach most of the rungs.
    each = 1.5 if isinstance(spec.policy, GeometricPolicy) else float(rungs)
    simulated = min(trials, _MOST_TRIALS, max(_FEWEST_TRIALS, int(REPORTS / each)))
    return simulated, min(_MOST_RUNS, max(1, int(REPORTS / (each * max(1, simulated)))))


def _simulate(spec: StudySpec, trials: int, slots: int, seed: int) -> _Run:
    """One study on a virtual clock, with one unit of time for each step. No policy uses a further objective. Ends
    by `until` are left out, as these curves and this clock do not apply to them."""
    changes = {"max_trials": trials, "enqueued": (), "sampler": RandomSampler(), "seed": spec.seed + seed}
    small = spec.model_copy(update={**changes, "further_objectives": (), "until": None})
    at_once = trials + (spec.baseline is not None)
    curves = SeedModel.of(small, seed=seed, trials=at_once)
    study = StudySimulation.of(small, curves)
    if at_once:
        most = at_once * most_slots(spec) if sizes_differ(spec) else at_once  # more would stay idle
        Simulation(machines_for(small, min(slots, most)), [study]).run()
    recorded = Counter((bracket, rung) for _, bracket, rung, _ in study.record.occupancy)
    slot_s = sum(held.slot_s for held in study.record.holdings())
    return _Run(recorded=recorded, end_s=study.record.end_s, slot_s=slot_s)


def _sizes(spec: StudySpec, trials: int) -> tuple[PreviewSize, ...]:
    """How many trials have each size, by the configurations that the study would try."""
    if spec.resources.by is None:
        return ()
    found = Counter(_size_of(spec, params) for params in _tried(spec, trials))
    scale = trials / max(1, found.total())
    counts = Counter({size: round(count * scale) for size, count in found.items()})
    if spec.baseline is not None:
        counts[_size_of(spec, spec.baseline)] += 1
    return tuple(
        PreviewSize(gpus=size.gpus, gpu_milli=size.gpu_milli, cpus=size.cpus, trials=counts[_shape(size)])
        for size in spec.resources.each
    )


def _bundle_groups(spec: StudySpec, trials: int) -> int:
    """The number of groups into which `fuse.apart` divides the configurations that the study would try."""
    fuse = spec.fuse
    return 0 if fuse is None else len({fuse.key(params) for params in _tried(spec, trials)})


def _tried(spec: StudySpec, trials: int) -> Iterator[Params]:
    """The first configurations that the study would try, as many as are counted."""
    sampler, counted = make_sampler(spec), min(trials, _MOST_COUNTED)
    first = spec.enqueued[:counted]
    yield from first
    drawn = (sampler.suggest(number) for number in range(counted - len(first)))
    yield from (params for params in drawn if params is not None)


def _size_of(spec: StudySpec, params: Params) -> tuple[int, int, int]:
    return _shape(spec.resources.of(params))


def _shape(size: Resources) -> tuple[int, int, int]:
    return (size.slots, size.milli, size.cpus)


def _samples(spec: StudySpec) -> tuple[Params, ...]:
    first = spec.enqueued[:_SAMPLES]
    if isinstance(spec.sampler, Nsga2Sampler | Nsga3Sampler | OwnSampler):
        return first  # the rest is drawn when the study runs
    sampler = make_sampler(spec)
    drawn = (sampler.suggest(number) for number in range(min(_SAMPLES, spec.max_trials) - len(first)))
    return (*first, *(params for params in drawn if params is not None))


def _rungs(spec: StudySpec, runs: list[_Run], scale: float) -> tuple[PreviewRung, ...]:
    policy = make_policy(spec)
    rungs: list[PreviewRung] = []
    for bracket in range(policy.brackets):
        before = 0
        for rung, milestone in enumerate(policy.ladder(bracket)):
            recorded = sum(run.recorded[bracket, rung] for run in runs) / len(runs)
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
