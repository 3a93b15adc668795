"""What each part of `auto` gains and costs: the default without it, and with another setting, on recorded curves.

    python benchmarks/policies/ablation.py --out RESULTS FILE...

For each order of arrival all variants see the same runs in the same order. A part is something that `auto` has and
a variant lacks. Its gain is the regret by which the variant is worse at its end. Its cost is what `auto` spends
more, in percent of run-all's cost. Both are means over the orders, with a paired 95% interval. Regret is divided
by that of the median run.

Prints a table for each file; writes `ablation.json`, with means and quartiles, and `effort.svg`: regret at the end
against spend, for each file, as `effort` goes from 0 to 40%.
"""

import argparse
import json
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from anytime_cells import at_share, paired, row
from recorded_orders import Found, Order, Scene, ours

from headrace.spec import StudySpec
from headrace_services.scheduler.simulator.drawing import svg
from headrace_services.scheduler.simulator.recorded import read_curves
from headrace_services.scheduler.simulator.variants import Variant, variant

AUTO, BARE = "auto", "asha"
PARTS = {
    "optimistic arrival and effort": BARE,
    "optimistic arrival": "effort alone",
    "effort": "optimistic arrival alone",
    "tripled rungs, not doubled ones": "doubled rungs, best half",
}
"""The parts of `auto`, and the variant without each."""
EFFORTS = (0.0, 0.03, 0.05, 0.1, 0.2, 0.4)
FLOOR = 1e-3
LEFT, TOP, WIDTH, HEIGHT = 86.0, 64.0, 520.0, 330.0


def variants(spec: StudySpec) -> Iterator[Variant]:
    """The default, without one part or with another setting."""
    named = {
        AUTO: AUTO,
        BARE: BARE,
        "optimistic arrival alone": "auto:effort=0",
        "effort alone": "asha:effort=0.2",
        "doubled rungs, best half": "auto:eta=2",
    }
    named |= {effort_label(share): f"auto:effort={share}" for share in EFFORTS if share not in (0.0, 0.2)}
    for label, text in named.items():
        yield replace(variant(spec, text), label=label)


def effort_label(share: float) -> str:
    """The name of the variant with a given effort."""
    return {0.0: "optimistic arrival alone", 0.2: AUTO}.get(share, f"effort {share:.0%}")


def one_order(work: tuple[Scene, int]) -> Found:
    """All variants on one order of arrival."""
    scene, seed = work
    order = Order.drawn(scene, seed)
    return ours(order, tuple(variants(order.spec)))


def measured(scene: Scene, orders: list[Found]) -> dict[str, Any]:
    """The variants' results, and what each part gains and costs."""

    def ends(label: str) -> list[float]:
        return [at_share(one[label], math.inf) for one in orders]

    def spends(label: str) -> list[float]:
        return [one[label]["spent"] for one in orders]

    return {
        "orders": len(orders),
        "runs": scene.spec.max_trials,
        "variants": {label: row(orders, label) for label in orders[0]},
        "parts": {
            part: {"gives": paired(ends(without), ends(AUTO)), "costs": paired(spends(AUTO), spends(without))}
            for part, without in PARTS.items()
        },
    }


def show(name: str, found: dict[str, Any]) -> None:
    """The tables of a file."""
    print(f"\n{name}, {found['runs']} runs, {found['orders']} orders")
    print(f"{'':<34}{'end':>8}{'spent':>8}   quartiles of the end")
    for label, said in found["variants"].items():
        low, middle, high = said["quartiles"]["end"]
        print(f"{label:<34}{said['end']:>8.3f}{said['spent']:>8.1%}   {low:.3f} {middle:.3f} {high:.3f}")
    for part, said in found["parts"].items():
        (gives, low, high), costs = said["gives"], said["costs"][0]
        print(f"{part:<34} gives {gives:+.3f} ({low:+.3f} to {high:+.3f}), costs {costs:+.1%}", flush=True)


def draw(record: dict[str, Any], title: str) -> str:
    """Regret at the end against spend, one line per file: the mean of each effort, and the quartiles."""
    curves = {
        name: [found["variants"][effort_label(share)] for share in EFFORTS] for name, found in record.items()
    }
    x = svg.axis_for(
        [said["spent"] for curve in curves.values() for said in curve], LEFT, LEFT + WIDTH, log=True
    )
    y = svg.Axis(low=FLOOR, high=1.2, start=TOP + HEIGHT, end=TOP, log=True)
    parts = [svg.text(LEFT - 8, 24, title, size=15, bold=True)]
    parts += svg.frame(
        x, y, x_title="spent at the end, of run-all's cost", y_title="regret at the end", percent="x"
    )
    for number, (name, curve) in enumerate(curves.items()):
        colour, shape = svg.SERIES[number % len(svg.SERIES)], svg.MARKERS[number % len(svg.MARKERS)]
        points = [(x(said["spent"]), y(max(said["end"], FLOOR))) for said in curve]
        parts.append(svg.line(points, colour))
        for at, share, said in zip(points, EFFORTS, curve, strict=True):
            low, _, high = (y(max(value, FLOOR)) for value in said["quartiles"]["end"])
            tip = f"{name}, effort {share:.0%}: {said['end']:.4f} at {said['spent']:.1%}"
            parts.append(svg.line([(at[0], low), (at[0], high)], colour, width=0.8))
            parts.append(svg.marker(*at, shape, colour, size=4, tip=tip))
        label_y = TOP + 12 + 19 * number
        parts.append(svg.marker(LEFT + WIDTH + 28, label_y - 4, shape, colour))
        parts.append(svg.text(LEFT + WIDTH + 40, label_y, name))
    said_y = TOP + 24 + 19 * len(curves)
    for place, words in enumerate(
        (f"effort, from left: {', '.join(f'{share:.0%}' for share in EFFORTS)}", f"0 is drawn at {FLOOR:g}")
    ):
        parts.append(svg.text(LEFT + WIDTH + 20, said_y + 17 * place, words, fill=svg.MUTED))
    return svg.page(LEFT + WIDTH + 330, TOP + HEIGHT + 56, parts, title=title)


def main() -> None:
    """Measure, print, draw, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--trials", type=int, default=250, help="at most so many runs an order; 0: all")
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results/ablation")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {}
    for path in options.files:
        scene = Scene(file=read_curves(path), trials=options.trials, workers=options.workers)
        work = [(scene, seed) for seed in range(options.orders)]
        with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
            orders = list(pool.map(one_order, work))
        name = path.name.partition(".")[0]
        record[name] = measured(scene, orders)
        show(name, record[name])
    title = f"What effort buys: {options.workers} workers, {options.orders} orders"
    (options.out / "effort.svg").write_text(draw(record, title), encoding="utf-8")
    (options.out / "ablation.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
