"""How good the answer is at every spend: policies and other tools' schedulers on recorded curves, in paired orders.

    python benchmarks/policies/anytime.py --policies auto,asha,median --out RESULTS FILE...
    python benchmarks/policies/anytime.py --judge auto --best-of CHOOSE/anytime.json --out CONFIRM FILE...

A figure "within 1% of the best" rewards who never stops. This one asks instead: after 2, 5, 10, 20 and 40% of what all
trials would cost at the full budget, how far is the best value so far from the best final one? The regret is divided by
that of the median run, so that tasks can be compared: 1 is a run picked blindly, 0 the best one. A policy that ended
keeps its answer.

For each order of arrival all policies see the same runs in the same order. Prints the mean for each file; writes
`anytime.json` with every order's regret, and a plot for each file: the median over the orders, with the quartiles.
`--best-of` names the record of other files. At each spend the peer that was best there is the one to compare with
(`anytime_cells`).

Optuna's pruners run where Optuna is installed, Syne Tune's after `pip install --no-deps syne-tune==0.16 dill`, Ray
Tune's after `pip install ray pyarrow`. What is not installed is left out.
"""

import argparse
import importlib
import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "simulator"))

import peer_loop
from anytime_cells import ASHA, SHARES, at_share, judged, print_judged, print_table, row

from headrace.spec import RunAllPolicy, StudySpec
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.drawing.regret import Band, regret_svg
from headrace_services.scheduler.simulator.recorded import CurveFile, RecordedCurves, read_curves
from headrace_services.scheduler.simulator.scenario import Scenario, simulate_seed
from headrace_services.scheduler.simulator.variants import compared

PEERS = ("syne_tune_peer", "optuna_peer", "ray_peer", "best_k_peer")
LEFT_OUT = ("syne_tune random",)
"""It is as run-all."""
Found = dict[str, dict[str, Any]]
"""Of each policy: the share of run-all's cost that it spent, and its regret at each improvement."""


def study(file: CurveFile, trials: int) -> StudySpec:
    """The study of a file: so many of its runs, up to the length of the longest."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": file.metric or "value", "goal": file.goal or "minimize"},
            "space": {"run": {"type": "int", "low": 0, "high": len(file.curves)}},
            "policy": {"kind": "run_all"},
            "max_trials": min(trials or len(file.curves), len(file.curves)),
            "max_steps": file.longest,
        }
    )


def finals(order: RecordedCurves, *, maximize: bool) -> list[float]:
    """The last value of each run, of which the smaller is the better; a run without one is the worst."""
    sign = -1.0 if maximize else 1.0
    ends = (curve.values[-1] for curve in order.order)
    return sorted(math.inf if end is None or not math.isfinite(end) else sign * end for end in ends)


def one_order(work: tuple[CurveFile, argparse.Namespace, int, int]) -> Found:
    """Everybody on one order of arrival."""
    file, options, workers, seed = work
    spec = study(file, options.trials)
    assert isinstance(spec.policy, RunAllPolicy)
    order = RecordedCurves.shuffled(file, seed=seed, trials=spec.max_trials)
    sign = -1.0 if spec.maximizes() else 1.0
    ends = finals(order, maximize=spec.maximizes())
    best, scale = ends[0], max(median(ends) - ends[0], 1e-12)
    whole = sum(curve.seconds[-1] for curve in order.order)
    scenario = Scenario(
        variants=tuple(compared(spec, name)[0] for name in options.policies.split(",")),
        machines=machines(workers),
        file=file,
        costs=Costs(
            write_s=options.pause / 2 * whole / len(ends), read_s=options.pause / 2 * whole / len(ends)
        ),
        failures=Failures(
            mean_time_s=whole / len(ends) * options.fail if options.fail else None,
            detect_s=0.01 * whole / len(ends),
            repair_s=0.05 * whole / len(ends),
        ),
    )
    found: Found = {
        label: {
            "spent": outcome.summary.slot_s / whole,
            "trace": [
                (one.slot_s / whole, max(0.0, sign * one.value - best) / scale)
                for one in outcome.improvements
            ],
        }
        for label, outcome in simulate_seed(scenario, seed).items()
    }
    task = peer_loop.Task(maximize=spec.maximizes(), max_t=spec.max_steps, trials=spec.max_trials, seed=seed)
    for label, make in peers().items():
        run = peer_loop.run(make, order.order, task, workers=workers)
        trace = [(at / whole, regret / scale) for at, regret in run.trace]
        found[label] = {"spent": run.slot_s / whole, "trace": trace}
    return found


def peers() -> dict[str, peer_loop.Make]:
    """The schedulers of other tools, as far as they are installed."""
    made: dict[str, peer_loop.Make] = {}
    for name in PEERS:
        try:
            made |= importlib.import_module(name).PEERS
        except ImportError:
            continue
    return {label: make for label, make in made.items() if label not in LEFT_OUT}


def draw(orders: list[Found], title: str) -> str:
    """The median regret and its quartiles at every spend."""
    traces = {label: [one[label]["trace"] for one in orders] for label in orders[0]}
    return regret_svg(
        traces, title=title, unit=(0.01, "% of run-all's cost"), floor=1e-3, band=Band.QUARTILES
    )


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--policies", default="auto,asha,median")
    parser.add_argument("--judge", default="", help="the policy that is compared with the best peers")
    parser.add_argument("--best-of", type=Path, help="the record by which the best peers are chosen")
    parser.add_argument("--workers", default="16,64")
    parser.add_argument("--trials", type=int, default=0, help="at most so many runs an order; 0: all")
    parser.add_argument("--orders", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first order's seed")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="what a pause of ours costs, as a share of a mean run"
    )
    parser.add_argument(
        "--fail", type=float, default=0.0, help="a machine of ours fails every so many mean runs; 0: never"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/anytime")
    return parser.parse_args()


def main() -> None:
    """Measure, print, draw, and keep the record."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {}
    for path in options.files:
        file = read_curves(path)
        for workers in (int(text) for text in options.workers.split(",")):
            seeds = range(options.first, options.first + options.orders)
            with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
                orders = list(pool.map(one_order, [(file, options, workers, seed) for seed in seeds]))
            short = path.name.partition(".")[0]
            name = f"{short}, {workers} workers"
            labels = list(orders[0])
            runs = study(file, options.trials).max_trials
            record[name] = {
                "orders": len(orders),
                "runs": runs,
                "policies": {label: row(orders, label) for label in labels},
                "regrets": {
                    label: [[round(at_share(one[label], share), 5) for share in SHARES] for one in orders]
                    for label in labels
                },
                "at_asha_end": {
                    label: [round(at_share(one[label], one[ASHA]["spent"]), 5) for one in orders]
                    for label in labels
                    if ASHA in labels
                },
            }
            print(f"\n{name}, {runs} runs, {len(orders)} orders")
            print_table(record[name])
            title = f"{file.metric}: {runs} recorded runs on {workers} workers, {len(orders)} orders"
            plot = options.out / f"anytime_{short}_{workers}.svg"
            plot.write_text(draw(orders, title), encoding="utf-8")
    if options.judge and options.best_of:
        chosen = json.loads(options.best_of.read_text(encoding="utf-8"))
        verdict = judged(record, chosen, options.judge)
        record["judged"] = verdict
        print_judged(verdict)
    (options.out / "anytime.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
