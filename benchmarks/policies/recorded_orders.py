"""Recorded runs in a random order of arrival, under our policies and under other tools' schedulers.

The order depends on a seed, and is the same for everybody. Regret is divided by that of the median run, and spend
is a share of what all runs of the order cost.

Machines fail for everybody at the same times. A trial then continues from the last rung of `auto` that it reached.
A pause costs our policies a write and a read; the tools compared here never pause, or are not charged.
"""

import importlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "simulator"))

import peer_loop

from headrace.spec import AutoPolicy, StudySpec
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.recorded import CurveFile, RecordedCurves
from headrace_services.scheduler.simulator.scenario import Scenario
from headrace_services.scheduler.simulator.summary import improvements
from headrace_services.scheduler.simulator.variants import Variant, compared

PEERS = ("syne_tune_peer", "optuna_peer", "ray_peer", "best_k_peer")
LEFT_OUT = ("syne_tune random",)
"""It is equivalent to run-all."""
Found = dict[str, dict[str, Any]]
"""For each policy: the share of run-all's cost that it spent, and its regret at each improvement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A file's runs on a number of workers."""

    file: CurveFile
    trials: int = 0
    """The maximum number of runs per order; 0 means all."""
    workers: int = 16
    pause: float = 0.0
    """What a pause costs, as a share of a mean run: half of it to write, half to read."""
    fail: float = 0.0
    """The time between machine failures, in mean runs; 0 means never."""

    @property
    def spec(self) -> StudySpec:
        """The study: `trials` of the file's runs, up to the length of the longest."""
        runs = len(self.file.curves)
        return StudySpec.model_validate(
            {
                "objective": {"metric": self.file.metric or "value", "goal": self.file.goal or "minimize"},
                "space": {"run": {"type": "int", "low": 0, "high": runs}},
                "policy": {"kind": "run_all"},
                "max_trials": min(self.trials or runs, runs),
                "max_steps": self.file.longest,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order of arrival."""

    scene: Scene
    seed: int
    curves: RecordedCurves
    spec: StudySpec
    best: float
    """The best final value; smaller is better."""
    scale: float
    """The median run's regret."""
    whole_s: float
    """The cost of all runs."""

    @classmethod
    def drawn(cls, scene: Scene, seed: int) -> "Order":
        """The order of a seed."""
        spec = scene.spec
        curves = RecordedCurves.shuffled(scene.file, seed=seed, trials=spec.max_trials)
        ends = _finals(curves, maximize=spec.maximizes())
        return cls(
            scene=scene,
            seed=seed,
            curves=curves,
            spec=spec,
            best=ends[0],
            scale=max(median(ends) - ends[0], 1e-12),
            whole_s=sum(curve.seconds[-1] for curve in curves.order),
        )

    @property
    def failures(self) -> Failures:
        """When machines fail, and for how long."""
        run_s = self.whole_s / self.spec.max_trials
        return Failures(
            mean_time_s=run_s * self.scene.fail if self.scene.fail else None,
            detect_s=0.01 * run_s,
            repair_s=0.05 * run_s,
            seed=self.seed,
        )

    @property
    def costs(self) -> Costs:
        """The cost of a pause."""
        half_s = self.scene.pause / 2 * self.whole_s / self.spec.max_trials
        return Costs(write_s=half_s, read_s=half_s)


def _finals(curves: RecordedCurves, *, maximize: bool) -> list[float]:
    """The last value of each run, the best first; a run without one is the worst."""
    sign = -1.0 if maximize else 1.0
    ends = (curve.values[-1] for curve in curves.order)
    return sorted(math.inf if end is None or not math.isfinite(end) else sign * end for end in ends)


def named(spec: StudySpec, names: str) -> tuple[Variant, ...]:
    """The variants that `auto,asha:effort=0.1` names, each with its own rungs."""
    return tuple(compared(spec, name)[0] for name in names.split(","))


def ours(order: Order, variants: Sequence[Variant]) -> Found:
    """Our policies on an order."""
    scenario = Scenario(
        variants=tuple(variants),
        machines=machines(order.scene.workers),
        file=order.scene.file,
        costs=order.costs,
        failures=order.failures,
    )
    sign = -1.0 if order.spec.maximizes() else 1.0
    found: Found = {}
    for variant in variants:
        simulation, study = scenario.simulate(variant, order.curves, order.seed)
        trace = [
            (one.slot_s / order.whole_s, max(0.0, sign * one.value - order.best) / order.scale)
            for one in improvements(simulation, study)
        ]
        spent_s = sum(held.slot_s for held in study.record.holdings())
        found[variant.label] = {"spent": spent_s / order.whole_s, "trace": trace}
    return found


def theirs(order: Order, made: dict[str, peer_loop.Make]) -> Found:
    """Other tools' schedulers on an order."""
    spec = order.spec
    task = peer_loop.Task(
        maximize=spec.maximizes(), max_t=spec.max_steps, trials=spec.max_trials, seed=order.seed
    )
    found: Found = {}
    for label, make in made.items():
        run = peer_loop.run(
            make,
            order.curves.order,
            task,
            workers=order.scene.workers,
            failures=order.failures,
            saves_at=AutoPolicy().ladder(spec.max_steps),
        )
        trace = [(at / order.whole_s, regret / order.scale) for at, regret in run.trace]
        found[label] = {"spent": run.slot_s / order.whole_s, "trace": trace}
    return found


def peers(wanted: Callable[[str], bool]) -> dict[str, peer_loop.Make]:
    """Other tools' schedulers, if installed and wanted."""
    made: dict[str, peer_loop.Make] = {}
    for name in PEERS:
        try:
            made |= importlib.import_module(name).PEERS
        except ImportError:
            continue
    return {label: make for label, make in made.items() if label not in LEFT_OUT and wanted(label)}
