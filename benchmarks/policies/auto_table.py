"""Tables in Markdown from the records of `anytime`, `ablation` and `effort_rules`: those of docs/explanation/auto.md.

    python benchmarks/policies/auto_table.py RECORD...
    python benchmarks/policies/auto_table.py --peers FOLDER

First come the means of each file: of `auto` at each spend and of some tools at their end, or of the parts of
`auto`. Each judged record gives a row in the next table: how many of the cells hold at each spend. Its cells
follow, with the mean paired difference and the upper end of its interval; those that do not hold are bold.
`--peers` prints the tools that were best at some spend in a folder's record, for `anytime --peers`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablation import AUTO, BARE, EFFORTS, PARTS, effort_label
from anytime_cells import ALLOWED, ASHA, SHARES, best_peers

PLACES = [f"at_{share:g}" for share in SHARES]
HEADS = [f"{share:.0%}" for share in SHARES]
ENDS = (ASHA, "syne_tune median", "optuna hyperband")
Record = dict[str, Any]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    print(f"\n| {' | '.join(heads)} |\n{'| --- ' * len(heads)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def end(said: Record) -> str:
    """The regret at the end, and its cost."""
    return f"{number(said['end'])} at {said['spent']:.0%}"


def number(value: float) -> str:
    """A regret with three decimal places, without the leading zero."""
    return "0" if round(value, 3) == 0 else f"{value:.3f}".lstrip("0")


def means(record: Record) -> None:
    """`auto` at each spend, and at its end compared with others."""
    scenes = {name: found["policies"] for name, found in record.items() if name != "judged"}
    others = [label for label in ENDS if all(label in found for found in scenes.values())]
    rows = [
        [name, " ".join(number(found[AUTO][place]) for place in PLACES), end(found[AUTO])]
        + [end(found[label]) for label in others]
        for name, found in scenes.items()
        if AUTO in found
    ]
    if rows:
        table(["", f"`auto` at {', '.join(HEADS)}", "end", *(f"{label}, end" for label in others)], rows)


def parts(record: Record) -> None:
    """The end of `auto` without each part, what the parts gain, and what effort buys."""
    labels = [BARE, "optimistic arrival alone", "effort alone", AUTO, "doubled rungs, best half"]
    table(
        ["", *labels],
        [[name, *(end(found["variants"][label]) for label in labels)] for name, found in record.items()],
    )
    rows = []
    for name, found in record.items():
        said = [found["parts"][part] for part in PARTS]
        row = [f"{one['gives'][0]:+.3f} ({one['gives'][1]:+.3f} to {one['gives'][2]:+.3f})" for one in said]
        costs = [f"{one['costs'][0]:+.1%}" for one in said]
        rows.append([name, *(f"{gives}; {cost}" for gives, cost in zip(row, costs, strict=True))])
    table(["gives (95%); costs", *PARTS], rows)
    table(
        ["effort", *(f"{share:.0%}" for share in EFFORTS)],
        [
            [name, *(end(found["variants"][effort_label(share)]) for share in EFFORTS)]
            for name, found in record.items()
        ],
    )


def summary(name: str, verdict: Record) -> list[str]:
    """How many cells hold at each spend, and the worst one."""
    cells = verdict["cells"].values()
    held = [sum(scene[place][2] <= ALLOWED for scene in cells) for place in PLACES]
    said = [f"{count} of {len(cells)}" for count in held]
    ends = max((mean for mean, _, _ in verdict["where_asha_ends"].values()), default=0.0)
    worst = f"{verdict['worst']:+.3f} ({verdict['worst_cell']})"
    return [name, *said, f"{verdict['held']} of {verdict['of']}", worst, f"{ends:+.3f}"]


def cell(gap: list[float]) -> str:
    """A difference, and the upper end of its interval."""
    text = f"{gap[0]:+.3f} ≤ {gap[2]:+.3f}"
    return text if gap[2] <= ALLOWED else f"**{text}**"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    if options.peers:
        record = json.loads((options.records[0] / "anytime.json").read_text(encoding="utf-8"))
        print(",".join(sorted({ASHA, *best_peers(record)})))
        return
    verdicts: dict[str, Record] = {}
    for path in options.records:
        record = json.loads(path.read_text(encoding="utf-8"))
        if all("variants" in found for found in record.values()):
            parts(record)
            continue
        means(record)
        judged = record.get("judged", {})
        verdicts |= {path.parent.name: judged} if "cells" in judged else judged
    if not verdicts:
        return
    heads = ["", *HEADS, "all", "worst mean", "where Syne Tune's ASHA ends, at worst"]
    table(heads, [summary(name, verdict) for name, verdict in verdicts.items()])
    for name, verdict in verdicts.items():
        peers = ", ".join(f"{share:.0%} {verdict['best_peers'][f'at_{share:g}']}" for share in SHARES)
        print(f"\n{name}: beside {peers}")
        cells = verdict["cells"].items()
        table(["", *HEADS], [[scene, *(cell(gaps[place]) for place in PLACES)] for scene, gaps in cells])


if __name__ == "__main__":
    main()
