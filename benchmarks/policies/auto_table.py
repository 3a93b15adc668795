"""Tables in Markdown from the records of `anytime` and `effort_rules`, as docs/explanation/auto.md has them.

    python benchmarks/policies/auto_table.py RECORD...
    python benchmarks/policies/auto_table.py --peers FOLDER

Each record that was judged gives a row in the first table: of the cells at each spend, how many hold. A table of its
cells follows: the mean paired difference, and the upper end of its interval; those that do not hold are bold.
`--peers` prints the tools that were best at some spend in a folder's record, for `anytime --peers`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from anytime_cells import ALLOWED, ASHA, SHARES, best_peers

PLACES = [f"at_{share:g}" for share in SHARES]
HEADS = " | ".join(f"{share:.0%}" for share in SHARES)


def summary(name: str, verdict: dict[str, Any]) -> str:
    """How many cells hold at each spend, and the worst one."""
    cells = verdict["cells"].values()
    held = [sum(scene[place][2] <= ALLOWED for scene in cells) for place in PLACES]
    at_end = verdict["where_asha_ends"].values()
    ends = max((mean for mean, _, _ in at_end), default=0.0)
    said = " | ".join(f"{count} of {len(cells)}" for count in held)
    worst = f"{verdict['worst']:+.3f} ({verdict['worst_cell']})"
    return f"| {name} | {said} | {verdict['held']} of {verdict['of']} | {worst} | {ends:+.3f} |"


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
    verdicts: dict[str, dict[str, Any]] = {}
    for path in options.records:
        record = json.loads(path.read_text(encoding="utf-8"))["judged"]
        by_rule = record if "cells" not in record else {path.parent.name: record}
        verdicts |= by_rule
    print(f"| | {HEADS} | all | worst mean | where Syne Tune's ASHA ends, at worst |")
    print("| --- " * (len(SHARES) + 4) + "|")
    for name, verdict in verdicts.items():
        print(summary(name, verdict))
    for name, verdict in verdicts.items():
        peers = ", ".join(f"{share:.0%} {verdict['best_peers'][f'at_{share:g}']}" for share in SHARES)
        print(f"\n{name}: beside {peers}\n\n| | {HEADS} |")
        print("| --- " * (len(SHARES) + 1) + "|")
        for scene, gaps in verdict["cells"].items():
            print(f"| {scene} | {' | '.join(cell(gaps[place]) for place in PLACES)} |")


if __name__ == "__main__":
    main()
