"""Evaluates a record of `anytime`: means, the best peer at each spend, and paired differences to it, cell by cell.

A cell is a file, a number of workers and a spend. It holds where the upper end of the 95% interval of the paired
difference, over the orders, is at most `ALLOWED`.
"""

import math
from typing import Any

import numpy as np

SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)
ALLOWED = 0.01
ASHA = "syne_tune asha"
RESAMPLES = 2000
OURS = ("run_all", "auto", "asha", "median", "learning_curve", "hyperband", "pasha")
"""Our own kinds: a label that starts with one of them, alone or with settings, is not a peer."""
Record = dict[str, Any]


def at_share(found: dict[str, Any], share: float) -> float:
    """The regret once this share of run-all's cost is spent; 1, a blind pick, before the first value."""
    reached = [regret for at, regret in found["trace"] if at <= share + 1e-12]
    return min(1.0, reached[-1]) if reached else 1.0


def row(orders: list[dict[str, Any]], label: str) -> Record:
    """A policy's means over the orders, with the quartiles."""
    found = {
        "spent": [one[label]["spent"] for one in orders],
        "end": [at_share(one[label], math.inf) for one in orders],
        **{f"at_{share:g}": [at_share(one[label], share) for one in orders] for share in SHARES},
    }
    means = {name: round(float(np.mean(values)), 4) for name, values in found.items()}
    quartiles = {
        name: [round(float(x), 4) for x in np.percentile(values, [25, 50, 75])]
        for name, values in found.items()
    }
    return {**means, "quartiles": quartiles}


def is_peer(label: str) -> bool:
    """Whether a label belongs to another tool's scheduler, or to the plain rule."""
    return label.split(":")[0] not in OURS


def best_peers(record: Record) -> list[str]:
    """At each spend, the peer with the least regret, averaged over the record's files and workers."""
    scenes = [scene for name, scene in record.items() if name != "judged"]
    labels = [label for label in scenes[0]["policies"] if is_peer(label)]
    return [
        min(
            labels,
            key=lambda label, key=f"at_{share:g}": np.mean([one["policies"][label][key] for one in scenes]),
        )
        for share in SHARES
    ]


def paired(ours: list[float], theirs: list[float]) -> list[float]:
    """The mean difference over the orders, and its 95% interval."""
    chance = np.random.default_rng(1)
    gaps = np.array(ours) - np.array(theirs)
    means = gaps[chance.integers(len(gaps), size=(RESAMPLES, len(gaps)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return [round(float(x), 4) for x in (gaps.mean(), low, high)]


def judged(record: Record, chosen: Record, label: str) -> Record:
    """A policy compared with the peer that was best in another record, at each spend."""
    best = best_peers(chosen)
    cells: dict[str, dict[str, list[float]]] = {}
    at_end: dict[str, list[float]] = {}
    for name, scene in record.items():
        ours = scene["regrets"][label]
        cells[name] = {
            f"at_{share:g}": paired(
                [one[place] for one in ours], [one[place] for one in scene["regrets"][best[place]]]
            )
            for place, share in enumerate(SHARES)
        }
        if scene["at_asha_end"]:
            at_end[name] = paired(scene["at_asha_end"][label], scene["at_asha_end"][ASHA])
    gaps = [gap for scene in cells.values() for gap in scene.values()]
    worst = max(
        ((name, place) for name, scene in cells.items() for place in scene),
        key=lambda cell: cells[cell[0]][cell[1]][0],
    )
    return {
        "policy": label,
        "best_peers": dict(zip([f"at_{share:g}" for share in SHARES], best, strict=True)),
        "cells": cells,
        "held": sum(high <= ALLOWED for _, _, high in gaps),
        "of": len(gaps),
        "worst": cells[worst[0]][worst[1]][0],
        "worst_cell": " ".join(worst),
        "where_asha_ends": at_end,
    }


def print_table(scene: Record) -> None:
    """The means of a file."""
    heads = "".join(f"{f'@{share:.0%}':>8}" for share in SHARES)
    print(f"{'':<44}{'spent':>8}{'end':>8}{heads}")
    for label, said in scene["policies"].items():
        cells = "".join(f"{said[f'at_{share:g}']:>8.3f}" for share in SHARES)
        print(f"{label:<44}{said['spent']:>8.1%}{said['end']:>8.3f}{cells}", flush=True)


def print_judged(verdict: Record) -> None:
    """The cells, and which of them hold."""
    print(f"\n{verdict['policy']} beside the best peer at each spend: {verdict['best_peers']}")
    for name, scene in verdict["cells"].items():
        told = "".join(f"{mean:>+9.3f} ≤{high:>+6.3f}" for mean, _, high in scene.values())
        print(f"{name:<44}{told}")
    worst = f"{verdict['worst']:+.3f}, {verdict['worst_cell']}"
    print(f"{verdict['held']} of {verdict['of']} cells hold; the worst mean is {worst}")
    for name, (mean, low, high) in verdict["where_asha_ends"].items():
        print(f"{name:<44} where Syne Tune's ASHA ends: {mean:+.3f} ({low:+.3f} to {high:+.3f})")
