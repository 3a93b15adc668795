"""How good the answer is at every spend: policies and Syne Tune's schedulers on recorded curves, in paired orders.

    python benchmarks/policies/anytime.py --policies asha,asha:arrival=optimistic,asha:effort=0.1 FILE...

A figure "within 1% of the best" rewards who never stops. This one asks instead: after 2, 5, 10, 20 and 40% of what all
trials would cost at the full budget, how far is the best value so far from the best final one? The regret is divided by
that of the median run, so that tasks can be compared: 1 is a run picked blindly, 0 the best one. A policy that ended
keeps its answer.

For each order of arrival all policies see the same runs in the same order. Prints the mean for each file and the paired
differences to a reference with 95% intervals over the orders; writes `anytime.json` and a plot for each file.
`pip install --no-deps syne-tune==0.16 dill` brings the peers; without them only ours run.
"""

import argparse
import json
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from headrace.spec import RunAllPolicy, StudySpec
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.drawing.regret import regret_svg
from headrace_services.scheduler.simulator.recorded import CurveFile, RecordedCurves, read_curves
from headrace_services.scheduler.simulator.scenario import Scenario, simulate_seed
from headrace_services.scheduler.simulator.variants import compared

SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
RESAMPLES = 2000
Found = dict[str, dict[str, Any]]
"""Of each policy: the share of run-all's cost that it spent, and its regret at each improvement."""


def study(file: CurveFile) -> StudySpec:
    """The study of a file: all its runs, up to the length of the longest."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": file.metric or "value", "goal": file.goal or "minimize"},
            "space": {"run": {"type": "int", "low": 0, "high": len(file.curves)}},
            "policy": {"kind": "asha"},
            "max_trials": len(file.curves),
            "max_steps": file.longest,
        }
    )


def finals(file: CurveFile) -> list[float]:
    """The last value of each run, of which the smaller is the better; a run without one is the worst."""
    sign = -1.0 if file.goal == "maximize" else 1.0
    ends = (curve.values[-1] for curve in file.curves)
    return sorted(math.inf if end is None or not math.isfinite(end) else sign * end for end in ends)


def one_order(work: tuple[CurveFile, str, int, int]) -> Found:
    """Everybody on one order of arrival."""
    file, policies, workers, seed = work
    spec = study(file)
    sign = -1.0 if file.goal == "maximize" else 1.0
    ends = finals(file)
    best, scale = ends[0], max(median(ends) - ends[0], 1e-12)
    bare = spec.model_copy(update={"policy": RunAllPolicy()})
    variants = tuple(compared(bare, name)[0] for name in policies.split(","))
    outcomes = simulate_seed(Scenario(variants=variants, machines=machines(workers), file=file), seed)
    whole = outcomes["run_all"].summary.slot_s
    found: Found = {
        label: {
            "spent": outcome.summary.slot_s / whole,
            "trace": [
                (one.slot_s / whole, max(0.0, sign * one.value - best) / scale)
                for one in outcome.improvements
            ],
        }
        for label, outcome in outcomes.items()
    }
    for label, run in _peers(file, spec, workers, seed):
        trace = [(at / whole, regret / scale) for at, regret in run.trace]
        found[label] = {"spent": run.slot_s / whole, "trace": trace}
    return found


def _peers(file: CurveFile, spec: StudySpec, workers: int, seed: int) -> Iterator[tuple[str, Any]]:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "simulator"))
    try:
        import syne_tune_peer as peer
    except ImportError:
        return
    order = RecordedCurves.shuffled(file, seed=seed, trials=spec.max_trials).order
    for label, make in peer.PEERS.items():
        if label != peer.RANDOM:
            yield (
                label,
                peer.run(
                    make, order, workers=workers, maximize=spec.maximizes(), max_t=spec.max_steps, seed=seed
                ),
            )


def at_share(found: dict[str, Any], share: float) -> float:
    """The regret once so much of run-all's cost is spent; 1, a blind pick, before the first value."""
    reached = [regret for at, regret in found["trace"] if at <= share + 1e-12]
    return min(1.0, reached[-1]) if reached else 1.0


def row(orders: list[Found], label: str) -> dict[str, Any]:
    """A policy's means over the orders."""
    return {
        "spent": round(float(np.mean([one[label]["spent"] for one in orders])), 4),
        "end": round(float(np.mean([at_share(one[label], math.inf) for one in orders])), 4),
        **{
            f"at_{share:g}": round(float(np.mean([at_share(one[label], share) for one in orders])), 4)
            for share in SHARES
        },
    }


def paired(orders: list[Found], label: str, other: str) -> dict[str, list[float]]:
    """The difference to another policy at each spend: mean and 95% interval over the orders."""
    chance = np.random.default_rng(1)
    said: dict[str, list[float]] = {}
    for share in SHARES:
        gaps = np.array([at_share(one[label], share) - at_share(one[other], share) for one in orders])
        means = gaps[chance.integers(len(gaps), size=(RESAMPLES, len(gaps)))].mean(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        said[f"at_{share:g}"] = [round(float(x), 4) for x in (gaps.mean(), low, high)]
    return said


def main() -> None:
    """Measure, print, draw, and keep the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--policies", default="asha,asha:arrival=optimistic,asha:arrival=optimistic:effort=0.1"
    )
    parser.add_argument("--against", default="syne_tune asha", help="whom the differences are taken to")
    parser.add_argument("--workers", default="16")
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first order's seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {}
    for path in options.files:
        file = read_curves(path)
        for workers in (int(text) for text in options.workers.split(",")):
            work = [
                (file, options.policies, workers, seed)
                for seed in range(options.first, options.first + options.orders)
            ]
            with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
                orders = list(pool.map(one_order, work))
            name = f"{path.name.partition('.')[0]}, {workers} workers"
            labels = list(orders[0])
            record[name] = {
                "orders": len(orders),
                "policies": {label: row(orders, label) for label in labels},
            }
            if options.against in labels:
                record[name]["against"] = {
                    label: paired(orders, label, options.against)
                    for label in labels
                    if label != options.against
                }
            print(f"\n{name}, {len(file.curves)} runs, {len(orders)} orders")
            heads = "".join(f"{f'@{share:.0%}':>8}" for share in SHARES)
            print(f"{'':<44}{'spent':>8}{'end':>8}{heads}")
            for label, said in record[name]["policies"].items():
                cells = "".join(f"{said[f'at_{share:g}']:>8.3f}" for share in SHARES)
                print(f"{label:<44}{said['spent']:>8.1%}{said['end']:>8.3f}{cells}", flush=True)
            traces = {label: [one[label]["trace"] for one in orders] for label in labels}
            plot = options.out / f"anytime_{path.name.partition('.')[0]}_{workers}.svg"
            title = (
                f"{file.metric}: {len(file.curves)} recorded runs on {workers} workers, {len(orders)} orders"
            )
            plot.write_text(
                regret_svg(traces, title=title, unit=(0.01, "% of run-all's cost"), floor=1e-3),
                encoding="utf-8",
            )
    (options.out / "anytime.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
