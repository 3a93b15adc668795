"""Where is ours best, or within the best one's interval? The cells of `tables.py`, and its picture.

    python benchmarks/samplers/table_cells.py

A cell is a task, a number of workers and a cost in full runs. It holds if the mean of ours is at most the upper end of
the 95% interval of the best of the others. Others with fewer than `LEAST` seeds have no interval to speak of: they are
drawn, and do not count.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

COSTS = (5, 10, 20, 40)
OURS = "ours"
PEERS = (
    "optuna tpe + sh",
    "best k after one",
    "neps priorband",
    "syne_tune ashabore",
    "syne_tune mobster",
    "syne_tune hyper-tune",
)
LEAST = 5
HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs" / "images" / "sampler-tables.svg"
Record = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Ours beside the best of the others."""

    place: str
    cost: int
    ours: list[float]
    best: str
    others: list[float]

    @property
    def holds(self) -> bool:
        """Whether ours is best, or within the best one's interval."""
        return self.ours[0] <= self.others[2]


def cells(record: Record) -> Iterator[Cell]:
    """All cells that ours and a peer with enough seeds have."""
    for place, sides in record.items():
        for cost in COSTS:
            at = f"at_{cost}"
            found = {
                name: sides[name][at]
                for name in PEERS
                if name in sides
                and at in sides[name]
                and sides[name].get(f"{at}_seeds", sides[name]["seeds"]) >= LEAST
            }
            if found and at in sides.get(OURS, {}):
                best = min(found, key=lambda name: found[name][0])
                yield Cell(place=place, cost=cost, ours=sides[OURS][at], best=best, others=found[best])


def draw(record: Record, file: Path) -> None:
    """Regret against full runs, one panel for each task and number of workers."""
    places = sorted(record, key=lambda place: (place.split(",")[0], int(place.split()[-2])))
    figure, grid = plt.subplots(2, (len(places) + 1) // 2, figsize=(13, 6), sharex=True, sharey=True)
    for index, place in enumerate(places):
        axes = grid[index % 2][index // 2]
        for name in (OURS, *PEERS):
            row = record[place].get(name, {})
            there = [cost for cost in COSTS if f"at_{cost}" in row]
            if not there:
                continue
            means, lows, highs = zip(*(row[f"at_{cost}"] for cost in there), strict=True)
            thick = {"linewidth": 2.4, "color": "black", "zorder": 3} if name == OURS else {"linewidth": 1.2}
            (line,) = axes.plot(there, means, marker="o", markersize=3, label=name, **thick)
            if row["seeds"] >= LEAST:
                axes.fill_between(there, lows, highs, color=line.get_color(), alpha=0.12, linewidth=0)
        axes.set_title(place, fontsize=9)
        axes.set_xscale("log")
        axes.set_xticks(COSTS, [str(cost) for cost in COSTS])
        axes.minorticks_off()
        axes.set_ylim(-0.02, 1)
    for axes in grid[-1]:
        axes.set_xlabel("full runs' cost")
    for row in grid:
        row[0].set_ylabel("normalised regret")
    handles = {
        text: line
        for axes in figure.axes
        for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles), fontsize=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Print the cells and draw the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, default=HERE / "results" / "tables.json")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    asked = parser.parse_args()
    record: Record = json.loads(asked.record.read_text("utf-8"))
    found = list(cells(record))
    print("| task, workers | full runs | ours | the best of the others | |\n| --- | --- | --- | --- | --- |")
    for cell in found:
        ours, others = (f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in (cell.ours, cell.others))
        print(
            f"| {cell.place} | {cell.cost} | {ours} | {cell.best} {others} | {'holds' if cell.holds else 'no'} |"
        )
    print(f"\n{sum(cell.holds for cell in found)} of {len(found)} cells hold")
    draw(record, asked.picture)


if __name__ == "__main__":
    main()
