"""How good the answer is at every spend: policies and other tools' schedulers on recorded curves, in paired orders.

    python benchmarks/policies/anytime.py --policies auto,asha,median --out RESULTS FILE...
    python benchmarks/policies/anytime.py --judge auto --best-of CHOOSE/anytime.json --out CONFIRM FILE...

A figure "within 1% of the best" rewards policies that never stop. This benchmark asks instead: after 2, 5, 10, 20
and 40% of what all trials would cost at the full budget, how far is the best value so far from the best final one?
The regret is divided by that of the median run, so that tasks can be compared: 1 is a run picked blindly, 0 the
best one. A policy that ended keeps its answer.

For each order of arrival all policies see the same runs in the same order. Prints the mean for each file; writes
`anytime.json` with every order's regret, and a plot for each file: the median over the orders, with the quartiles.
`--best-of` names the record of other files. At each spend the comparison is with the peer that was best there
(`anytime_cells`).

Optuna's pruners run where Optuna is installed, Syne Tune's after `pip install --no-deps syne-tune==0.16 dill`, Ray
Tune's after `pip install ray pyarrow`. Tools that are not installed are left out.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from anytime_cells import ASHA, SHARES, at_share, judged, print_judged, print_table, row
from recorded_orders import Found, Order, Scene, named, ours, peers, theirs

from headrace_services.scheduler.simulator.drawing.regret import Band, regret_svg
from headrace_services.scheduler.simulator.recorded import read_curves


def one_order(work: tuple[Scene, argparse.Namespace, int]) -> Found:
    """All policies on one order of arrival."""
    scene, options, seed = work
    order = Order.drawn(scene, seed)
    asked = [name for name in options.peers.split(",") if name]
    found = ours(order, named(order.spec, options.policies))
    return found | theirs(order, peers(lambda label: not asked or label in asked))


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
    parser.add_argument("files", nargs="*", type=Path, help="none: judge the record that is there again")
    parser.add_argument("--policies", default="auto,asha,median")
    parser.add_argument("--peers", default="", help="only these of other tools' schedulers")
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
        "--fail", type=float, default=0.0, help="a machine fails every so many mean runs; 0: never"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plots", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results/anytime")
    return parser.parse_args()


def main() -> None:
    """Measure, print, draw, and write the record."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "anytime.json"
    record: dict[str, Any] = {} if options.files else json.loads(kept.read_text(encoding="utf-8"))
    record.pop("judged", None)
    for path in options.files:
        file = read_curves(path)
        for workers in (int(text) for text in options.workers.split(",")):
            scene = Scene(
                file=file, trials=options.trials, workers=workers, pause=options.pause, fail=options.fail
            )
            seeds = range(options.first, options.first + options.orders)
            with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
                orders = list(pool.map(one_order, [(scene, options, seed) for seed in seeds]))
            short = path.name.partition(".")[0]
            name = f"{short}, {workers} workers"
            labels = list(orders[0])
            runs = scene.spec.max_trials
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
            if options.plots:
                title = f"{file.metric}: {runs} recorded runs on {workers} workers, {len(orders)} orders"
                plot = options.out / f"anytime_{short}_{workers}.svg"
                plot.write_text(draw(orders, title), encoding="utf-8")
    if options.judge and options.best_of:
        chosen = json.loads(options.best_of.read_text(encoding="utf-8"))
        verdict = judged(record, chosen, options.judge)
        record["judged"] = verdict
        print_judged(verdict)
    kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
