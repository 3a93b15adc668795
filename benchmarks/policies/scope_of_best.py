"""Which value of a trial should count: how good the winner of each `scope` is, on recorded curves.

    python benchmarks/policies/scope_of_best.py --out benchmarks/results/scope/choose FILE...

A study sees every other evaluation of each run. The ones between are held out, and show how good the run really
is: no scope has seen them. For each order of arrival a policy runs in the simulator, and each scope names a winner
among the same reports of the same trials. Four figures, in units of the distance between the best and the median
run:

- **configuration**: how far the winner's held-out value at the full budget is from the best one's. That is what
  training the configuration again gives. It is the mean over the last tenth of the budget.
- **model**: how far the held-out evaluation beside the winner's last checkpoint is from the same best value.
- **kept**: the same with `keep: best`, which goes with `best` alone; for the others it is the last checkpoint again.
- **told**: by how much the value that counts is better than the configuration's held-out one. 0 is honest.

Runs shorter than the median are left out, and longer ones are cut to it, so that each has a value at the full
budget. A run without a finite one counts as `WORST`. The intervals are of paired bootstraps over the orders.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from headrace.spec import RunAllPolicy, StudySpec
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.recorded import CurveFile, RecordedCurve, read_curves
from headrace_services.scheduler.simulator.scenario import Scenario
from headrace_services.scheduler.simulator.variants import compared

WORST = 5.0
"""The regret of a winner that diverges, and the maximum for all: no single one must outweigh all others."""
WORKERS = 8
RESAMPLES = 2000
KS = (3, 5, 10)
FIGURES = ("configuration", "model", "kept", "told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, with signs such that less is better."""

    seen: tuple[float, ...]
    held: tuple[float, ...]
    """The evaluation after each visible one."""
    truth: float
    """Held out, at the full budget; infinite if it is not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a study knows about a run at its end."""

    run: Run
    step: int
    complete: bool

    @property
    def values(self) -> tuple[float, ...]:
        return self.run.seen[: self.step]


Key = tuple[float, ...]
"""What a scope sorts by; its last entry is the value that counts."""


def by_best(trial: Trial) -> Key:
    return (min(value for value in trial.values if math.isfinite(value)),)


def by_last(trial: Trial) -> Key:
    return (trial.values[-1],)


def by_full_budget(trial: Trial) -> Key:
    return (not trial.complete, trial.values[-1])


def by_mean(k: int) -> Callable[[Trial], Key]:
    return lambda trial: (mean(trial.values[-k:]),)


SCOPES: dict[str, Callable[[Trial], Key]] = {
    "best": by_best,
    "last": by_last,
    "full_budget": by_full_budget,
    **{f"mean_last_{k}": by_mean(k) for k in KS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A file as the studies see it."""

    name: str
    file: CurveFile
    runs: dict[str, Run]
    best: float
    scale: float

    @classmethod
    def of(cls, path: Path) -> "Task":
        whole = read_curves(path)
        sign = -1.0 if whole.goal == "maximize" else 1.0
        budget = int(median(len(curve.steps) for curve in whole.curves)) // 2
        window = max(3, budget // 10)
        curves: list[RecordedCurve] = []
        runs: dict[str, Run] = {}
        for curve in whole.curves:
            if len(curve.steps) < 2 * budget:
                continue
            values = [math.nan if value is None else sign * value for value in curve.values[: 2 * budget]]
            held = values[1::2]
            truth = mean(held[-window:])
            runs[curve.name] = Run(
                seen=tuple(values[::2]),
                held=tuple(held),
                truth=truth if math.isfinite(truth) else math.inf,
            )
            curves.append(
                RecordedCurve(
                    name=curve.name,
                    steps=tuple(range(1, budget + 1)),
                    seconds=curve.seconds[: 2 * budget : 2],
                    values=curve.values[: 2 * budget : 2],
                    params=curve.params,
                )
            )
        file = CurveFile(path=path, curves=tuple(curves), metric=whole.metric, goal=whole.goal)
        truths = sorted(run.truth for run in runs.values())
        return cls(
            name=path.name.partition(".")[0],
            file=file,
            runs=runs,
            best=truths[0],
            scale=max(median(one for one in truths if math.isfinite(one)) - truths[0], 1e-12),
        )

    def regret(self, value: float, best: float) -> float:
        return min(WORST, (value - best) / self.scale) if math.isfinite(value) else WORST


def study(file: CurveFile, trials: int) -> StudySpec:
    """A study of `trials` of a file's runs."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": file.metric or "value", "goal": file.goal or "minimize"},
            "space": {"run": {"type": "int", "low": 0, "high": len(file.curves)}},
            "policy": {"kind": "run_all"},
            "max_trials": trials,
            "max_steps": file.longest,
        }
    )


def one_order(work: tuple[Task, str, int, int]) -> dict[str, dict[str, dict[str, float]]]:
    """Each policy's figures by scope, on one order of arrival."""
    task, policies, count, seed = work
    bare = study(task.file, min(count, len(task.file.curves)))
    assert isinstance(bare.policy, RunAllPolicy)
    variants = tuple(compared(bare, name)[0] for name in policies.split(","))
    scenario = Scenario(variants=variants, machines=machines(WORKERS), file=task.file)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for variant in variants:
        _, simulated = scenario.simulate(variant, scenario.curves(seed), seed)
        reached: dict[int, int] = {}
        for segment in simulated.record.segments:
            reached[segment.trial] = max(segment.to_step, reached.get(segment.trial, 0))
        trials = [
            Trial(
                run=task.runs[simulated.curve(number).name],  # type: ignore[attr-defined]
                step=step,
                complete=simulated.rows.trials[number].reason is Reason.COMPLETED,
            )
            for number, step in sorted(reached.items())
        ]
        found[variant.label] = figures(task, trials)
    return found


def figures(task: Task, trials: Sequence[Trial]) -> dict[str, dict[str, float]]:
    """The quality of each scope's winner."""
    best = min(trial.run.truth for trial in trials)
    sound = [trial for trial in trials if math.isfinite(trial.values[-1])]
    said: dict[str, dict[str, float]] = {}
    for name, key in SCOPES.items():
        usable = [(key(trial), place) for place, trial in enumerate(sound)]
        value, place = min(pair for pair in usable if math.isfinite(pair[0][-1]))
        winner = sound[place]
        step = winner.values.index(value[-1]) + 1 if name == "best" else winner.step
        said[name] = {
            "configuration": task.regret(winner.run.truth, best),
            "model": task.regret(winner.run.held[winner.step - 1], best),
            "kept": task.regret(winner.run.held[step - 1], best),
            "told": -task.regret(value[-1], winner.run.truth) if math.isfinite(winner.run.truth) else WORST,
        }
    return said


def rows(orders: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Means over the orders and, for each scope, the paired difference to `best` with its 95% interval."""
    chance = np.random.default_rng(1)
    picks = chance.integers(len(orders), size=(RESAMPLES, len(orders)))
    said: dict[str, Any] = {}
    for name in SCOPES:
        row: dict[str, Any] = {}
        for figure in FIGURES:
            own = np.array([one[name][figure] for one in orders])
            gaps = own - np.array([one["best"][figure] for one in orders])
            low, high = np.percentile(gaps[picks].mean(axis=1), [2.5, 97.5])
            row[figure] = round(float(own.mean()), 4)
            row[f"{figure}_against_best"] = [round(float(x), 4) for x in (gaps.mean(), low, high)]
        said[name] = row
    return said


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--policies", default="run_all,asha,asha-stopping,median")
    parser.add_argument("--trials", type=int, default=50, help="runs a study, drawn anew for each order")
    parser.add_argument("--orders", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "scope")
    options = parser.parse_args()
    record: dict[str, Any] = {"trials": options.trials, "orders": options.orders, "tasks": {}}
    everything: dict[str, list[dict[str, dict[str, float]]]] = {}
    for path in options.files:
        task = Task.of(path)
        work = [(task, options.policies, options.trials, seed) for seed in range(options.orders)]
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            orders = list(pool.map(one_order, work, chunksize=4))
        by_policy = {label: [order[label] for order in orders] for label in orders[0]}
        for label, found in by_policy.items():
            everything.setdefault(label, []).extend(found)
        record["tasks"][task.name] = {
            "runs": len(task.runs),
            "steps": task.file.longest,
            "policies": {label: rows(found) for label, found in by_policy.items()},
        }
        show(f"{task.name}: {len(task.runs)} runs of {task.file.longest} steps", record["tasks"][task.name])
    record["all"] = {"policies": {label: rows(found) for label, found in everything.items()}}
    show(f"all {len(options.files)} tasks", record["all"])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scope_of_best.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def show(title: str, said: dict[str, Any]) -> None:
    print(f"\n{title}")
    for label, found in said["policies"].items():
        print(f"{label:<24}" + "".join(f"{figure:>38}" for figure in FIGURES))
        for name, row in found.items():
            cells = ""
            for figure in FIGURES:
                gap, low, high = row[f"{figure}_against_best"]
                cells += f"{row[figure]:>10.4f} {f'{gap:+.4f} ({low:+.4f} to {high:+.4f})':>27}"
            print(f"  {name:<22}{cells}", flush=True)


if __name__ == "__main__":
    main()
