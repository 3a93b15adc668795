"""`headrace.optimize` against Optuna in one process: time per trial, and regret, with the same kind of sampler.

Both run 1,000 trials of cheap functions in memory, in turns, with TPE and with random draws. The whole call is
timed: proposals, bookkeeping, and on our side the result with all its trials. Both TPE are Optuna's, with its
defaults. Ours asks it through the trial table that the scheduler's processes use, which shows it at most
`max_results` results.

The ratio is that of the processor times of a turn's two runs on a function; means have 95% bootstrap intervals
over functions and turns. The functions are those of `benchmarks/samplers/regret.py`.

    chrt -i 0 nice -n 19 python benchmarks/in_process/beside_optuna.py

Prints, and writes `beside_optuna.json` after each turn. Four minutes of one core.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "samplers"))

import numpy as np
import optuna
from regret import FUNCTIONS, Function

from headrace import optimize

Run = tuple[float, list[float]]
"""Processor seconds, and the regret of each trial."""


def ours(function: Function, kind: str, seed: int, trials: int) -> Run:
    """`headrace.optimize`."""
    space = {
        f"x{axis}": {"type": "float", "low": low, "high": high}
        for axis, (low, high) in enumerate(function.bounds)
    }
    began = time.process_time()
    result = optimize(lambda t: function.regret(t.params), space, trials=trials, sampler=kind, seed=seed)
    spent = time.process_time() - began
    return spent, [trial.metrics["value"] for trial in result.trials]


def optunas(function: Function, kind: str, seed: int, trials: int) -> Run:
    """An Optuna study in memory."""

    def objective(trial: optuna.Trial) -> float:
        names = [
            trial.suggest_float(f"x{axis}", low, high) for axis, (low, high) in enumerate(function.bounds)
        ]
        return function.regret({f"x{axis}": value for axis, value in enumerate(names)})

    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    began = time.process_time()
    study = optuna.create_study(sampler=samplers[kind](seed=seed + 1000))
    study.optimize(objective, n_trials=trials)
    spent = time.process_time() - began
    return spent, [float(trial.value) for trial in study.trials if trial.value is not None]


SIDES: dict[str, Callable[[Function, str, int, int], Run]] = {"headrace": ours, "optuna": optunas}


@dataclass
class Turns:
    """What the turns of one kind of sampler have found so far, by function and side."""

    kind: str
    trials: int
    turns: int = 0
    spent: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    least: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def warm_up(self) -> None:
        """Imports, and the first use of everything."""
        for side in SIDES.values():
            side(FUNCTIONS[0], self.kind, 999, 20)

    def next(self) -> None:
        """Both sides on each function; who goes first changes with each turn."""
        for function in FUNCTIONS:
            for name in sorted(SIDES, reverse=bool(self.turns % 2)):
                seconds, regrets = SIDES[name](function, self.kind, self.turns, self.trials)
                assert len(regrets) == self.trials
                self.spent[function.name][name].append(seconds)
                self.least[function.name][name].append(min(regrets))
        self.turns += 1

    def record(self) -> dict[str, object]:
        """The figures over all turns."""
        ratios = [
            a / b for of in self.spent.values() for a, b in zip(of["headrace"], of["optuna"], strict=True)
        ]
        rows = {
            name: {
                "ms_per_trial": {
                    side: round(1e3 * float(np.median(of)) / self.trials, 3) for side, of in spent.items()
                },
                "median_regret": {
                    side: float(f"{np.median(of):.4g}") for side, of in self.least[name].items()
                },
            }
            for name, spent in self.spent.items()
        }
        return {
            "turns": self.turns,
            "ratio_of_times": [round(one, 3) for one in geometric(ratios)],
            "log10_regret_minus_optuna": [round(one, 3) for one in self.regret()],
            "functions": rows,
        }

    def regret(self) -> tuple[float, float, float]:
        """How much higher log10 of our regret is than Optuna's: the mean over functions and turns, with its
        interval."""
        logs = [
            math.log10(max(a, 1e-12)) - math.log10(max(b, 1e-12))
            for of in self.least.values()
            for a, b in zip(of["headrace"], of["optuna"], strict=True)
        ]
        return bootstrap(logs)


def geometric(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean with its interval."""
    mean, low, high = bootstrap([math.log(ratio) for ratio in ratios])
    return math.exp(mean), math.exp(low), math.exp(high)


def bootstrap(values: list[float]) -> tuple[float, float, float]:
    """The mean with its 95% interval."""
    generator = np.random.default_rng(1)
    draws = [generator.choice(values, len(values)).mean() for _ in range(4000)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.mean(values)), float(low), float(high)


def main() -> None:
    """Run and print; write the record after each turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--tpe-turns", type=int, default=4)
    parser.add_argument("--random-turns", type=int, default=6)
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    document: dict[str, object] = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "trials": asked.trials,
        "optuna": version("optuna"),
    }
    for kind, turns in (("random", asked.random_turns), ("tpe", asked.tpe_turns)):
        found = Turns(kind, asked.trials)
        found.warm_up()
        for _ in range(turns):
            found.next()
            document[kind] = found.record()
            document["cpu_s"] = round(time.process_time())
            text = json.dumps(document, indent=1) + "\n"
            (asked.out / "beside_optuna.json").write_text(text, encoding="utf-8")
            print(kind, found.turns, document[kind], flush=True)


if __name__ == "__main__":
    main()
