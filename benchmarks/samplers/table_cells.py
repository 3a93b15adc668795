"""Where ours is best, or within the best one's interval: the cells of `tables.py`, and its plot.

    python benchmarks/samplers/table_cells.py

A cell is a task, a number of workers and a cost in full runs. It holds if the mean of ours is at most the upper end of
the 95% interval of the best of the others. Others with fewer than `LEAST` seeds have no interval to speak of: they are
drawn with dots, and do not count.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

COSTS = (5, 10, 20, 40)
OURS = "ours"
TASKS = {
    "taskset_imdb_patch128_LSTM128_bs64": "TaskSet LSTM128",
    "ts_gru": "TaskSet GRU",
    "ts_lstm": "TaskSet LSTM",
    "ts_vrnn": "TaskSet VRNN",
}
"""Their names on the pages."""
PEERS = (
    "optuna tpe + sh",
    "best k after one",
    "neps priorband",
    "syne_tune ashabore",
    "syne_tune mobster",
    "syne_tune hyper-tune",
)
LEAST = 10
HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs" / "images" / "sampler-tables.svg"
Record = dict[str, dict[str, dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Ours compared with the best of the others."""

    place: str
    cost: int
    ours: list[float]
    best: str
    others: list[float]

    @property
    def holds(self) -> bool:
        """Whether ours is best, or within the best one's interval."""
        return round(self.ours[0], 3) <= round(self.others[2], 3)


def _named(place: str) -> str:
    task, _, workers = place.partition(",")
    return f"{TASKS.get(task, task)},{workers}"


def _ordered(record: Record) -> list[str]:
    """By task, then by the number of workers: `ts_gru, 16 workers`."""
    return sorted(record, key=lambda place: (place.split(",")[0], int(place.split()[-2])))


def cells(record: Record) -> Iterator[Cell]:
    """All cells for which ours and a peer with enough seeds have results."""
    for place in _ordered(record):
        sides = record[place]
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
    places = _ordered(record)
    figure = Figure(figsize=(13, 6))
    grid = figure.subplots(2, (len(places) + 1) // 2, sharex=True, sharey=True)
    for index, place in enumerate(places):
        axes = grid[index % 2][index // 2]
        for number, name in enumerate((OURS, *PEERS)):
            row = record[place].get(name, {})
            there = [cost for cost in COSTS if f"at_{cost}" in row]
            if not there:
                continue
            means, lows, highs = zip(*(row[f"at_{cost}"] for cost in there), strict=True)
            many = row["seeds"] >= LEAST
            axes.plot(
                there,
                means,
                marker="o",
                markersize=3,
                label=name,
                color="black" if name == OURS else f"C{number - 1}",
                linewidth=2.4 if name == OURS else 1.2,
                linestyle="-" if many else ":",
                zorder=3 if name == OURS else 2,
            )
            if many:
                axes.fill_between(
                    there, lows, highs, color=axes.lines[-1].get_color(), alpha=0.12, linewidth=0
                )
        axes.set_title(_named(place), fontsize=9)
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
    with mpl.rc_context({"svg.hashsalt": "headrace", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def _shown(cell: Cell) -> str:
    """Ours, in bold if the cell holds, and the best of the others."""
    ours, others = (
        f"{_short(mean)} [{_short(low)}, {_short(high)}]" for mean, low, high in (cell.ours, cell.others)
    )
    return f"{f'**{ours}**' if cell.holds else ours}; {cell.best.removesuffix(' after one')} {others}"


def _short(regret: float) -> str:
    return f"{regret:.3f}".removeprefix("0") if round(regret, 3) else "0"


def main() -> None:
    """Print the cells and draw the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, default=HERE.parent / "results" / "tables.json")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    asked = parser.parse_args()
    record: Record = json.loads(asked.record.read_text("utf-8"))
    found = list(cells(record))
    print("| task, workers | " + " | ".join(f"at {cost}" for cost in COSTS) + " |")
    print("| --- " * (1 + len(COSTS)) + "|")
    for place in dict.fromkeys(cell.place for cell in found):
        print(
            f"| {_named(place)} | " + " | ".join(_shown(cell) for cell in found if cell.place == place) + " |"
        )
    print(f"\n{sum(cell.holds for cell in found)} of {len(found)} cells hold")
    draw(record, asked.picture)


if __name__ == "__main__":
    main()
