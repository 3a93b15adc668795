"""Do our TPE and GPs reach the regret of Optuna's own, at equal budget with 8 trials at a time?

Both sides run Optuna's samplers with its defaults, on the same functions with the same random order of completion.
The peer is an Optuna study in memory, with ask and tell. Ours is the learner that the service's processes run:
each proposal from a fresh sampler, seeded by the study's seed and the proposal's number, on the trial table.
`ahead` is ours as the service feeds it, where the proposals in the lookahead are pending too: the price of slots
that never wait. `multi_fidelity` is not an Optuna sampler: with its single rung here it is compared with Optuna's
Gaussian process.

Prints a table, writes a JSON record and a plot. About 3 minutes of one core.
"""

import argparse
import json
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import optuna

from headrace.spec import StudySpec
from headrace_services.scheduler.core.placing import lookahead
from headrace_services.scheduler.samplers import Params, Result, Suggestion, make_learner

IN_FLIGHT = 8
KINDS = ("tpe", "gp", "multi_fidelity")
Vector = Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function to minimise, on a box."""

    name: str
    bounds: tuple[tuple[float, float], ...]
    best: float
    value: Callable[[Vector], float]

    def regret(self, params: Params) -> float:
        """How far a configuration is from the minimum."""
        return self.value([float(params[f"x{axis}"]) for axis in range(len(self.bounds))]) - self.best


def branin(x: Vector) -> float:
    """Three minima of equal depth."""
    a, b = x
    return (
        (b - 5.1 / (4 * math.pi**2) * a**2 + 5 / math.pi * a - 6) ** 2
        + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a)
        + 10
    )


_HARTMANN_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_HARTMANN_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann6(x: Vector) -> float:
    """Six local minima in six dimensions."""
    inner = (_HARTMANN_A * (np.asarray(x) - _HARTMANN_P) ** 2).sum(axis=1)
    return float(-(np.array([1.0, 1.2, 3.0, 3.2]) * np.exp(-inner)).sum())


def rosenbrock(x: Vector) -> float:
    """A bent valley, on a logarithmic scale because its values span six decades."""
    total = sum(100 * (after - before**2) ** 2 + (1 - before) ** 2 for before, after in pairwise(x))
    return math.log1p(total)


def ackley(x: Vector) -> float:
    """Many small pits in a large one."""
    squares = sum(value**2 for value in x) / len(x)
    waves = sum(math.cos(2 * math.pi * value) for value in x) / len(x)
    return -20 * math.exp(-0.2 * math.sqrt(squares)) - math.exp(waves) + 20 + math.e


def levy(x: Vector) -> float:
    """Ridges in each dimension."""
    w = [1 + (value - 1) / 4 for value in x]
    inner = sum((one - 1) ** 2 * (1 + 10 * math.sin(math.pi * one + 1) ** 2) for one in w[:-1])
    return math.sin(math.pi * w[0]) ** 2 + inner + (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)


FUNCTIONS = (
    Function(name="Branin", bounds=((-5, 10), (0, 15)), best=0.39788735772973816, value=branin),
    Function(name="Hartmann-6", bounds=((0, 1),) * 6, best=-3.3223680114155147, value=hartmann6),
    Function(name="Rosenbrock-3", bounds=((-2, 2),) * 3, best=0.0, value=rosenbrock),
    Function(name="Ackley-4", bounds=((-10, 20),) * 4, best=0.0, value=ackley),
    Function(name="Levy-4", bounds=((-10, 10),) * 4, best=0.0, value=levy),
)


def spec_of(function: Function, kind: str, seed: int) -> StudySpec:
    """The study of one run of ours."""
    space = {
        f"x{axis}": {"type": "float", "low": low, "high": high}
        for axis, (low, high) in enumerate(function.bounds)
    }
    return StudySpec.model_validate(
        {
            "objective": {"metric": "value", "goal": "minimize"},
            "space": space,
            "sampler": {"kind": kind},
            "policy": {"kind": "run_all"},
            "max_trials": 1000,
            "max_steps": 1,
            "seed": seed,
        }
    )


def ours(function: Function, kind: str, seed: int, trials: int, *, ahead: bool) -> list[float]:
    """The regret of each of our trials, in the order of completion."""
    spec = spec_of(function, kind, seed)
    learner = make_learner(spec)
    order = np.random.default_rng([seed, 99])
    flying: list[Suggestion] = []
    waiting: list[Suggestion] = []
    regrets: list[float] = []
    asked = 0
    queue = lookahead(spec, IN_FLIGHT) if ahead else 0
    while len(regrets) < trials:
        while len(flying) + len(waiting) < IN_FLIGHT + queue:
            pending = [one.params for one in (*flying, *waiting)]
            waiting.append(learner.suggest(asked, pending))
            asked += 1
            while waiting and len(flying) < IN_FLIGHT:
                flying.append(waiting.pop(0))
        done = flying.pop(int(order.integers(len(flying))))
        if waiting:
            flying.append(waiting.pop(0))
        regrets.append(function.regret(done.params))
        learner.learn([Result(params=done.params, values=(regrets[-1],))])
    return regrets


def optunas(function: Function, kind: str, seed: int, trials: int) -> list[float]:
    """The same for an Optuna study in memory."""
    sampler: optuna.samplers.BaseSampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "tpe":
            sampler = optuna.samplers.TPESampler(seed=seed + 1000)
        else:
            sampler = optuna.samplers.GPSampler(seed=seed + 1000)
        study = optuna.create_study(sampler=sampler)
    order = np.random.default_rng([seed, 99])
    flying: list[optuna.Trial] = []
    regrets: list[float] = []
    while len(regrets) < trials:
        while len(flying) < IN_FLIGHT:
            trial = study.ask()
            for axis, (low, high) in enumerate(function.bounds):
                trial.suggest_float(f"x{axis}", low, high)
            flying.append(trial)
        done = flying.pop(int(order.integers(len(flying))))
        regrets.append(function.regret(done.params))
        study.tell(done, regrets[-1])
    return regrets


def at_random(function: Function, seed: int, trials: int) -> list[float]:
    """Independent draws, for scale."""
    generator = np.random.default_rng([seed, 7])
    return [
        function.regret({f"x{axis}": generator.uniform(*bound) for axis, bound in enumerate(function.bounds)})
        for _ in range(trials)
    ]


def best_so_far(regrets: list[float]) -> list[float]:
    """The least regret up to each trial."""
    return list(np.minimum.accumulate(regrets))


def interval(left: np.ndarray, right: np.ndarray) -> tuple[float, float, float]:
    """The difference of the means of log10 regret (left minus right) with its 95% bootstrap interval."""
    generator = np.random.default_rng(1)
    logs = [np.log10(np.maximum(side, 1e-12)) for side in (left, right)]
    draws = [
        generator.choice(logs[0], len(logs[0])).mean() - generator.choice(logs[1], len(logs[1])).mean()
        for _ in range(4000)
    ]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(logs[0].mean() - logs[1].mean()), float(low), float(high)


def run(seeds: dict[str, int], trials: dict[str, int], record: dict[str, object]) -> dict[str, object]:
    """All runs, alternating, added to the record."""
    for kind in seeds:
        for function in FUNCTIONS:
            curves: dict[str, list[list[float]]] = {"ours": [], "ahead": [], "optuna": [], "random": []}
            times: dict[str, float] = dict.fromkeys(curves, 0.0)
            for seed in range(seeds[kind]):
                sides: dict[str, Callable[[], list[float]]] = {
                    "ours": partial(ours, function, kind, seed, trials[kind], ahead=False),
                    "ahead": partial(ours, function, kind, seed, trials[kind], ahead=True),
                    "optuna": partial(optunas, function, kind, seed, trials[kind]),
                    "random": partial(at_random, function, seed, trials[kind]),
                }
                for name, side in sides.items():
                    begun = time.process_time()
                    curves[name].append(best_so_far(side()))
                    times[name] += time.process_time() - begun
            final = {name: np.array([curve[-1] for curve in found]) for name, found in curves.items()}
            entry: dict[str, object] = {
                "trials": trials[kind],
                "seeds": seeds[kind],
                "median_regret": {name: float(np.median(values)) for name, values in final.items()},
                "cpu_ms_per_trial": {
                    name: round(1000 * spent / seeds[kind] / trials[kind], 2) for name, spent in times.items()
                },
                "curves": {
                    name: [
                        float(f"{value:.4g}") for value in np.median(np.array(found), axis=0)[::2].tolist()
                    ]
                    for name, found in curves.items()
                },
            }
            for name in ("ours", "ahead"):
                difference, low, high = interval(final[name], final["optuna"])
                entry[f"log10_{name}_minus_optuna"] = [round(difference, 3), round(low, 3), round(high, 3)]
                entry[f"{name}_no_worse"] = low <= 0
            record[f"{kind} {function.name}"] = entry
            shown = "  ".join(f"{name} {np.median(values):9.3g}" for name, values in final.items())
            print(
                f"{kind:4} {function.name:13} {shown}   log10 ours−optuna "
                f"{entry['log10_ours_minus_optuna']}  ahead−optuna {entry['log10_ahead_minus_optuna']}",
                flush=True,
            )
    return record


def pooled(record: dict[str, object]) -> dict[str, list[float]]:
    """The mean of the differences over functions, with the interval for independent runs."""
    found: dict[str, list[float]] = {}
    for kind in KINDS:
        for name in ("ours", "ahead"):
            rows = [
                entry[f"log10_{name}_minus_optuna"]
                for key, entry in record.items()
                if key.startswith(f"{kind} ") and isinstance(entry, dict)
            ]
            if rows:
                mean = sum(row[0] for row in rows) / len(rows)
                half = math.sqrt(sum(((row[2] - row[1]) / 2) ** 2 for row in rows)) / len(rows)
                found[f"{kind} {name}"] = [round(mean, 3), round(mean - half, 3), round(mean + half, 3)]
    return found


def draw(record: dict[str, object], path: Path) -> None:
    """Median regret against completed trials, one panel per function and sampler."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    kinds = [kind for kind in KINDS if any(key.startswith(f"{kind} ") for key in record)]
    figure, axes = plt.subplots(len(kinds), len(FUNCTIONS), figsize=(15, 3.2 * len(kinds)), squeeze=False)
    styles = {
        "random": ("#999999", ":", "random"),
        "optuna": ("#d95f02", "-", "Optuna"),
        "ours": ("#1b6ca8", "-", "Headrace"),
        "ahead": ("#1b6ca8", "--", "Headrace, proposals ahead of need"),
    }
    for row, kind in enumerate(kinds):
        for column, function in enumerate(FUNCTIONS):
            entry = record[f"{kind} {function.name}"]
            assert isinstance(entry, dict)
            axis = axes[row][column]
            for name, (colour, line, label) in styles.items():
                curve = entry["curves"][name]
                axis.plot(
                    [1 + 2 * place for place in range(len(curve))], curve, line, color=colour, label=label
                )
            axis.set_yscale("log")
            axis.set_title(f"{function.name}, {kind.upper().replace('_', ' ')}", fontsize=10)
            axis.grid(visible=True, alpha=0.25)
            if row == len(kinds) - 1:
                axis.set_xlabel("completed trials")
            if not column:
                axis.set_ylabel("regret (median)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, print, record, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--tpe-seeds", type=int, default=30)
    parser.add_argument("--gp-seeds", type=int, default=4)
    parser.add_argument("--tpe-trials", type=int, default=60)
    parser.add_argument("--gp-trials", type=int, default=32)
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="the others keep what the record has of them"
    )
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    begun = time.process_time()
    file = asked.out / "regret.json"
    kept = json.loads(file.read_text("utf-8"))["runs"] if file.exists() else {}
    kinds = asked.kinds.split(",")
    seeds = {kind: asked.tpe_seeds if kind == "tpe" else asked.gp_seeds for kind in kinds}
    trials = {kind: asked.tpe_trials if kind == "tpe" else asked.gp_trials for kind in kinds}
    record = run(seeds, trials, {key: one for key, one in kept.items() if key.split()[0] not in kinds})
    over_all = pooled(record)
    for name, (mean, low, high) in over_all.items():
        print(f"{name}: log10 regret minus Optuna's over all functions {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    cpu_s = round(time.process_time() - begun)
    document = {
        "in_flight": IN_FLIGHT,
        "optuna": optuna.__version__,
        "python": platform.python_version(),
        "cpu_s": cpu_s,
        "over_all_functions": over_all,
        "runs": record,
    }
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(record, asked.out / "regret.png")
    print(f"{cpu_s} s of CPU time")


if __name__ == "__main__":
    main()
