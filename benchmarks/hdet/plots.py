"""Draws the records of these benchmarks; each benchmark calls `draw` when its record is written.

Run it:  python benchmarks/hdet/plots.py [NAME …]
It reads NAME.json and writes NAME.svg, both in ../results, for every record or the named ones. Nothing is run again.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#66727f"
mpl.rcParams.update({"svg.hashsalt": "headrace", "font.size": 9, "axes.titlesize": 10})


def draw(name: str) -> None:
    """Draws one record."""
    record = json.loads((HERE.parent / "results" / f"{name}.json").read_text(encoding="utf-8"))
    figure = DRAWN[name](record)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE.parent / "results" / f"{name}.svg", metadata={"Date": None})


def quadratic(record: dict[str, Any]) -> Figure:
    """Every seed's factor, and the median with its interval, by start and update."""
    results = record["results"]
    starts = list(dict.fromkeys(row["start"] for row in results))
    variants = list(dict.fromkeys(row["variant"] for row in results))
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, start in zip(figure.subplots(1, len(starts), sharey=True), starts, strict=True):
        for row in (row for row in results if row["start"] == start):
            y = len(variants) - 1 - variants.index(row["variant"])
            axes.plot(
                row["factors"], [y - 0.18] * len(row["factors"]), ".", color=GREY, alpha=0.5, markersize=4
            )
            axes.plot([row["low"], row["high"]], [y, y], color=BLUE, linewidth=3)
            axes.plot(row["median"], y, "o", color=BLUE, markersize=6)
        axes.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_title(f"start {start}")
        axes.set_xlabel(f"rate after {record['syncs']} syncs / rate at the start")
        axes.set_yticks(range(len(variants)), variants[::-1])
    return figure


def gpt(record: dict[str, Any]) -> Figure:
    """Validation loss by the rate at the start: OneCycle's curve, and HDET from both ends."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes: Axes = figure.subplots()
    for method, color, style in (("OneCycle", GREY, "o-"), ("HDET", BLUE, "D")):
        rows = sorted(
            (row for row in record["summary"] if row["method"] == method), key=lambda row: row["start_lr"]
        )
        for run in (run for run in record["runs"] if run["method"] == method):
            axes.plot(run["start_lr"], run["validation_loss"], ".", color=color, alpha=0.35, markersize=4)
        axes.errorbar(
            [row["start_lr"] for row in rows],
            [row["mean_loss"] for row in rows],
            [row["plus_minus"] for row in rows],
            fmt=style,
            color=color,
            capsize=3,
            markersize=5,
            label=f"{method}, mean and 95 % interval",
        )
    best = next(row for row in record["summary"] if row["method"].startswith("best of"))
    axes.axhline(best["mean_loss"], color=GREEN, linewidth=1, linestyle="--", label=best["method"])
    axes.set_xscale("log")
    axes.set_xlabel("peak rate at the start")
    axes.set_ylabel(f"validation loss after {record['steps']} steps, nats per byte")
    axes.legend(frameon=False)
    return figure


def stability(record: dict[str, Any]) -> Figure:
    """How many runs diverged, with and without a fan."""
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes: Axes = figure.subplots()
    rates = sorted({row["lr"] for row in record["results"]})
    for place, (fan, label, color) in enumerate(
        ((False, "data-parallel", GREY), (True, "fan-out and averaging, α = 1/9", BLUE))
    ):
        rows = [row for row in record["results"] if (row["alpha"] > 0) == fan]
        bars = axes.bar(
            [rates.index(row["lr"]) + 0.36 * (place - 0.5) for row in rows],
            [row["diverged"] for row in rows],
            0.34,
            color=color,
            label=label,
        )
        axes.bar_label(bars, [f"{row['diverged']} of {record['seeds']}" for row in rows], padding=2)
    axes.set_xticks(range(len(rates)), [f"peak rate {rate:g}" for rate in rates])
    axes.set_ylabel("runs that diverged")
    axes.set_ylim(0, record["seeds"] * 1.15)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def cost(record: dict[str, Any]) -> Figure:
    """The time of a step and of a sync, and the overhead at T = 1000, by size and replicas."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for replicas, color in ((2, GREEN), (3, ORANGE), (4, BLUE)):
        rows = [row for row in record["results"] if row["replicas"] == replicas]
        millions = [row["parameters"] / 1e6 for row in rows]
        left.plot(
            millions, [row["step_s"] * 1e3 for row in rows], "o-", color=color, label=f"step, N={replicas}"
        )
        left.plot(
            millions, [row["sync_s"] * 1e3 for row in rows], "s--", color=color, label=f"sync, N={replicas}"
        )
        right.plot(
            millions,
            [row["overhead_at_1000"] * 100 for row in rows],
            "o-",
            color=color,
            label=f"N={replicas}",
        )
    right.axhline(0.1, color=GREY, linewidth=0.8, linestyle=":", label="asked of ≥ 10 million")
    left.set_yscale("log")
    left.set_ylabel("milliseconds, the slowest rank's median")
    right.set_ylabel("overhead at T = 1000, % of the steps' time")
    right.set_ylim(0, 0.115)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("million parameters")
        axes.legend(frameon=False, fontsize=8)
    return figure


def digits(record: dict[str, Any]) -> Figure:
    """By study: the sweep with the end points, the trajectories, and end points by interval."""
    studies = record["studies"]
    figure = Figure(figsize=(11, 3.1 * len(studies)), layout="constrained")
    panels = figure.subplots(len(studies), 3, squeeze=False)
    for (left, middle, right), study in zip(panels, studies, strict=True):
        factors = study["explored"] == "weight_decay"
        longest = max(row["interval"] for row in study["hdet"])
        by_units = study["units"] == "mortal"
        left.errorbar(
            [row["value"] for row in study["sweep"]],
            [row["test_loss"][0] for row in study["sweep"]],
            [row["test_loss"][1] for row in study["sweep"]],
            fmt="o-",
            color=GREY,
            markersize=4,
            capsize=3,
            label=f"fixed value, {study['seeds']} seeds",
        )
        for row, color in zip(
            (row for row in study["hdet"] if row["interval"] == longest), (ORANGE, BLUE), strict=True
        ):
            label = f"HDET from {row['start']:g}"
            mean, half = row["test_loss"]
            left.plot(row["landed"], [mean] * len(row["landed"]), "|", color=color, markersize=9)
            left.errorbar(
                sorted(row["landed"])[len(row["landed"]) // 2],
                mean,
                half,
                fmt="D",
                color=color,
                markersize=5,
                capsize=3,
                label=label,
            )
            for number, trajectory in enumerate(row["trajectories"]):
                steps = range(0, longest * (len(trajectory) + 1), longest)
                middle.plot(
                    steps,
                    [row["start"], *trajectory],
                    color=color,
                    linewidth=0.9,
                    alpha=0.7,
                    label=label if number == 0 else None,
                )
        for color, start in zip((ORANGE, BLUE), sorted({row["start"] for row in study["hdet"]}), strict=True):
            for row in (row for row in study["hdet"] if row["start"] == start):
                side = 0.93 if color == ORANGE else 1.07
                right.plot(
                    row["units_alive"] if by_units else [row["interval"] * side] * len(row["landed"]),
                    row["landed"],
                    "o",
                    color=color,
                    alpha=0.6,
                    markersize=4,
                )
        for axes in (middle, right):
            axes.axhline(study["best"], color=GREEN, linewidth=1.2, linestyle="--", label="best of the sweep")
            axes.set_ylabel(study["explored"].replace("_", " "))
            if factors:
                axes.set_yscale("log")
            else:
                axes.set_ylim(-0.02, 0.9)
        if factors:
            left.set_xscale("log")
        left.set_title(study["name"], fontsize=9)
        left.set_xlabel(study["explored"].replace("_", " "))
        left.set_ylabel("test loss")
        middle.set_xlabel(f"step (a sync every {longest})")
        left.legend(frameon=False, fontsize=8)
        middle.legend(frameon=False, fontsize=8)
        if by_units:
            right.set_xlabel("hidden units of 32 that are not dead")
            continue
        right.set_xlabel(f"steps between syncs; landings after {record['syncs']} syncs")
        right.set_xscale("log")
        intervals = sorted({row["interval"] for row in study["hdet"]})
        right.set_xticks(intervals, [str(one) for one in intervals])
        right.xaxis.set_minor_locator(NullLocator())
        right.set_ylim(middle.get_ylim())
        right.set_xlim(intervals[0] * 0.7, intervals[-1] * 1.4)
    return figure


DRAWN = {"quadratic": quadratic, "gpt": gpt, "stability": stability, "cost": cost, "digits": digits}


if __name__ == "__main__":
    for chosen in sys.argv[1:] or DRAWN:
        draw(chosen)
