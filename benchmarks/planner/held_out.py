"""The value of a plan for an unmeasured model: one half of the models is fitted, the other predicted.

    python benchmarks/planner/held_out.py

In each vTrain file the models are sorted by width and depth and split alternately: half A is the first, third, ...
and half B the others. Constants are fitted on one half and predict the other, both ways. Plans compete if devices
and batch agree. Regret is how much slower than the fastest measured plan the chosen one was. It is given for the
first plan alone, for the best of the shortlist (`planner.shortlist`, as `headrace plan` uses it), and for the best
of its plans within the model's error, since the second one of a shortlist may be further off. Every plan of a
group is scored, and a shortlist must leave some out to count: groups of fewer than eight plans are not ranked. The
constants of the shortlist (3%, 2 to 5 plans, one for each split) were given in advance and not tuned here. Writes
`held_out.json` to ../results.
"""

import json
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from headrace_services.planner import catalogue
from headrace_services.planner.calibration import fit
from headrace_services.planner.measured import Rows, predicted_s, read_rows
from headrace_services.planner.shortlist import NEAR, shortlist

HERE = Path(__file__).parent
FILES = ("vtrain_single_node.csv", "vtrain_multi_node.csv")
MODEL = ("hidden", "layers")
RANKED = 8


def halves(rows: Rows) -> list[tuple[str, Any]]:
    """For each half, its models' names and a mask of its rows."""
    keys = np.stack([rows[name] for name in MODEL], axis=1)
    models = np.unique(keys, axis=0)
    found = []
    for first in (0, 1):
        mine = models[first::2]
        mask = np.array([any((key == one).all() for one in mine) for key in keys])
        found.append((", ".join(f"h={h:g} L={layers:g}" for h, layers in mine), mask))
    return found


def regrets(rows: Rows, predicted: Any) -> list[dict[str, Any]]:
    """For every group of competing plans: the cost of trusting one, and of measuring the shortlist."""
    keys = np.stack([rows[name] for name in (*MODEL, "gpus", "global_batch")], axis=1)
    found = []
    for key in np.unique(keys, axis=0):
        own = np.flatnonzero((keys == key).all(axis=1))
        if len(own) < RANKED:
            continue
        measured = rows.seconds[own]
        chosen = shortlist(
            range(len(own)),
            lambda i, own=own: float(predicted[own[i]]),  # type: ignore[misc]  # a value of this turn of the loop
            lambda i, own=own: tuple(rows[name][own[i]] for name in ("dp", "tp", "pp")),  # type: ignore[misc]
        )
        near = [i for i in chosen if predicted[own[i]] <= (1 + NEAR) * predicted[own[chosen[0]]]]
        best = measured.min()
        found.append(
            {
                "model": f"h={key[0]:g} L={key[1]:g}",
                "gpus": int(key[2]),
                "batch": int(key[3]),
                "plans": len(own),
                "shortlist": len(chosen),
                "within_the_error": len(near),
                "regret_of_one": float(measured[chosen[0]] / best - 1),
                "regret_within_the_error": float(measured[near].min() / best - 1),
                "regret_of_shortlist": float(measured[chosen].min() / best - 1),
            }
        )
    return found


def main() -> None:
    cluster = catalogue.cluster("a100-80g-hdr4-512")
    rows = [read_rows([HERE / "data" / name]) for name in FILES]
    both = read_rows([HERE / "data" / name for name in FILES])
    split = [halves(one) for one in rows]
    record: list[dict[str, Any]] = []
    for half in (0, 1):
        fitted = np.concatenate([one[half][1] for one in split])
        constants = cluster.with_efficiencies(fit(both.where(fitted), cluster))
        for name, one, parts in zip(FILES, rows, split, strict=True):
            held = one.where(parts[1 - half][1])
            predicted = predicted_s(held, constants)
            miss = np.abs(predicted / held.seconds - 1)
            groups = regrets(held, predicted)
            record.append(
                {
                    "file": name,
                    "fitted": parts[half][0],
                    "predicted": parts[1 - half][0],
                    "rows": len(held),
                    "median": float(np.median(miss)),
                    "worst": float(miss.max()),
                    "groups": len(groups),
                    "plans_in_shortlist": mean(g["shortlist"] for g in groups),
                    **{
                        name: {
                            "median": median(g[name] for g in groups),
                            "worst": max(g[name] for g in groups),
                        }
                        for name in ("regret_of_one", "regret_within_the_error", "regret_of_shortlist")
                    },
                    "each": groups,
                }
            )
    (HERE.parent / "results" / "held_out.json").write_text(json.dumps(record, indent=1) + "\n")
    for one in record:
        print({key: value for key, value in one.items() if key != "each"})


if __name__ == "__main__":
    main()
