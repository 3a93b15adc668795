"""`headrace.optimize` beside Optuna in one process: time a trial, and regret, with the same kind of sampler.

Both run 1,000 trials of cheap functions in memory, in turns, with TPE and with random draws. What is timed is the whole
call: proposals, bookkeeping, and on our side the result with all its trials. Both TPE are Optuna's, with its defaults.
Ours asks it through the trial table that the scheduler's processes use, which shows it at most `max_results` results.

The ratio of times is that of the turn's two runs; the interval is a bootstrap over turns. The regrets are compared as
in `benchmarks/samplers/regret.py`.

    chrt -i 0 nice -n 19 python benchmarks/in_process/beside_optuna.py

Prints a table and writes `beside_optuna.json`. A quarter of an hour of one core.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "samplers"))

import numpy as np
import optuna
from regret import FUNCTIONS, Function, interval

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


def in_turns(kind: str, turns: int, trials: int) -> dict[str, object]:
    """Both sides on each function, `turns` times; who goes first changes with the turn."""
    sides: dict[str, Callable[[Function, str, int, int], Run]] = {"headrace": ours, "optuna": optunas}
    for side in sides.values():  # imports, and the first use of everything
        side(FUNCTIONS[0], kind, 999, 20)
    rows: dict[str, object] = {}
    ratios: list[float] = []
    for function in FUNCTIONS:
        spent: dict[str, list[float]] = {name: [] for name in sides}
        final: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(turns):
            for name in sorted(sides, reverse=bool(turn % 2)):
                seconds, regrets = sides[name](function, kind, turn, trials)
                assert len(regrets) == trials
                spent[name].append(seconds)
                final[name].append(min(regrets))
        ratios += [a / b for a, b in zip(spent["headrace"], spent["optuna"], strict=True)]
        difference = interval(np.array(final["headrace"]), np.array(final["optuna"]))
        rows[function.name] = {
            "ms_per_trial": {
                name: round(1e3 * float(np.median(of)) / trials, 3) for name, of in spent.items()
            },
            "median_regret": {name: float(f"{np.median(of):.4g}") for name, of in final.items()},
            "log10_regret_minus_optuna": [round(one, 3) for one in difference],
        }
        print(kind, function.name, rows[function.name], flush=True)
    return {"ratio_of_times": [round(one, 3) for one in geometric(ratios)], "functions": rows}


def geometric(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean with its 95% bootstrap interval."""
    logs = np.log(ratios)
    generator = np.random.default_rng(1)
    draws = [generator.choice(logs, len(logs)).mean() for _ in range(4000)]
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def main() -> None:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--tpe-turns", type=int, default=4)
    parser.add_argument("--random-turns", type=int, default=10)
    asked = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    began = time.process_time()
    document = {
        "trials": asked.trials,
        "turns": {"random": asked.random_turns, "tpe": asked.tpe_turns},
        "optuna": version("optuna"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "random": in_turns("random", asked.random_turns, asked.trials),
        "tpe": in_turns("tpe", asked.tpe_turns, asked.trials),
    }
    document["cpu_s"] = round(time.process_time() - began)
    path = asked.out / "beside_optuna.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
