"""A study under several policies, on one cluster, with one source of curves: what is simulated for each seed.

Every seed runs run-all first, on new curves, and then every policy on the curves as run-all left them. So all
policies have the same conditions and, with the synthetic model, the noise that the chapter's own second run saw.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from headrace.spec import RunAllPolicy, StudySpec
from headrace_services.scheduler.samplers import expected_trials
from headrace_services.scheduler.simulator.cluster import Machine
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.curves import Curves, SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.recorded import CurveFile, RecordedCurves
from headrace_services.scheduler.simulator.study import StudySimulation
from headrace_services.scheduler.simulator.summary import (
    TARGET_SHARE,
    Improvement,
    Summary,
    improvements,
    summarise,
)
from headrace_services.scheduler.simulator.variants import Variant

RUN_ALL = "run_all"
PROCESSES = 2
_WORTH_A_POOL_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a simulation depends on, except the seed."""

    variants: tuple[Variant, ...]
    machines: tuple[Machine, ...]
    file: CurveFile | None = None
    shuffled: bool = True
    reports_at: tuple[int, ...] = ()
    """The steps at which a program with synthetic curves reports, whatever the policy."""
    seconds_per_step: float = 1.0
    costs: Costs = field(default_factory=Costs)
    failures: Failures = field(default_factory=Failures)
    within: float = TARGET_SHARE

    @property
    def spec(self) -> StudySpec:
        """The first variant's spec, from which everything that the variants share may be read."""
        return self.variants[0].spec

    def curves(self, seed: int) -> Curves:
        """The configurations of a seed, in the order of their arrival."""
        trials = expected_trials(self.spec) + (self.spec.baseline is not None)
        if self.file is not None:
            return RecordedCurves.shuffled(self.file, seed=seed if self.shuffled else None, trials=trials)
        return SeedModel.of(
            self.spec,
            seed=seed,
            trials=trials,
            reports_at=self.reports_at,
            seconds_per_step=self.seconds_per_step,
        )

    def simulate(
        self, variant: Variant, curves: Curves, seed: int, progress: Callable[[int], None] | None = None
    ) -> tuple[Simulation, StudySimulation]:
        """Run one variant to its end."""
        spec = variant.spec.model_copy(update={"seed": seed})
        study = StudySimulation.of(spec, curves, costs=self.costs, name=variant.label)
        failures = Failures(
            mean_time_s=self.failures.mean_time_s,
            detect_s=self.failures.detect_s,
            repair_s=self.failures.repair_s,
            seed=seed,
        )
        simulation = Simulation(self.machines, [study], failures=failures, progress=progress)
        simulation.run()
        return simulation, study

    def run_all(self) -> Variant:
        """The study without a policy."""
        for variant in self.variants:
            if isinstance(variant.spec.policy, RunAllPolicy):
                return variant
        return Variant(label=RUN_ALL, spec=self.spec.model_copy(update={"policy": RunAllPolicy()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One variant on one seed."""

    summary: Summary
    improvements: tuple[Improvement, ...]


SeedOutcomes = dict[str, Outcome]
"""The outcomes of a seed, by the labels of their variants, run-all first."""


def simulate_seed(scenario: Scenario, seed: int) -> SeedOutcomes:
    """All variants on one seed."""
    curves = scenario.curves(seed)
    first = scenario.run_all()
    outcomes = {first.label: _outcome(scenario, first, curves, seed)}
    for variant in scenario.variants:
        if variant.label not in outcomes:
            outcomes[variant.label] = _outcome(scenario, variant, curves.fork(), seed)
    return outcomes


def simulate_seeds(
    scenario: Scenario, seeds: Sequence[int], progress: Callable[[int], None] | None = None
) -> list[SeedOutcomes]:
    """All variants on all seeds, in order; in two processes if that saves more than it costs."""
    say = progress or (lambda _: None)
    done: list[SeedOutcomes] = []
    began = time.perf_counter()
    for seed in seeds[:2]:  # the second one is not slowed by first uses
        began = time.perf_counter()
        done.append(simulate_seed(scenario, seed))
        say(len(done))
    left = seeds[len(done) :]
    if (time.perf_counter() - began) * len(left) < _WORTH_A_POOL_S:
        for seed in left:
            done.append(simulate_seed(scenario, seed))
            say(len(done))
        return done
    for outcomes in _pooled(scenario, left):
        done.append(outcomes)
        say(len(done))
    return done


def _pooled(scenario: Scenario, seeds: Sequence[int]) -> Iterator[SeedOutcomes]:
    # A new interpreter, not a fork: the command line may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, context, initializer=_begin, initargs=(scenario,)) as pool:
        yield from pool.map(_one, seeds)


_scenario: Scenario | None = None
"""What a process of the pool simulates: sent once, not with every seed."""


def _begin(scenario: Scenario) -> None:
    global _scenario
    _scenario = scenario


def _one(seed: int) -> SeedOutcomes:
    assert _scenario is not None
    return simulate_seed(_scenario, seed)


def _outcome(scenario: Scenario, variant: Variant, curves: Curves, seed: int) -> Outcome:
    simulation, study = scenario.simulate(variant, curves, seed)
    summary = summarise(simulation, study, within=scenario.within)
    return Outcome(summary=summary, improvements=tuple(improvements(simulation, study)))
