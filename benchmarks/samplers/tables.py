"""With a model: how good is the answer after the cost of 5, 10, 20 and 40 full runs? Ours and peers on recorded
tables.

    python benchmarks/samplers/tables.py --sides "ours tpe,optuna tpe + sh" --seeds 20 FILE...

Files are TaskSet tables: 1,000 runs of eight hyperparameters of Adam. The nearest unused row of a proposal is run,
and the optimizer receives that row's configuration. The regret is that of the best value so far against the best
of the table, divided by that of the median run. Every run is a line of `tables.jsonl`, and is not repeated;
`tables.json` has means, their 95% intervals over the seeds, and the milliseconds of computing for a new
configuration.

`ours` is what a study with `multi_fidelity` and no policy gets, `ours tpe, auto` is for one with `tpe`. `ours tpe`
has ASHA with optimistic arrival, or `cautious`, and learns from the highest rung with enough results, as in the
service. `furthest first`, `ranked again` and `earned first` order the trials by the results at all rungs, and were
not better (decision 0104). `ours random` learns nothing. Peers run if they can be imported (`table_peers.py`).
`table_cells.py` shows where ours is best.
"""

import argparse
import importlib
import json
import math
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from table_runs import (
    BestK,
    Ours,
    Run,
    RungOrder,
    Side,
    Table,
    earned_first,
    furthest_first,
    play,
    ranked_again,
    read_table,
    spec_of,
)

COSTS = (5, 10, 20, 40)
ASHA: dict[str, object] = {"kind": "asha", "arrival": "optimistic"}
OURS: dict[str, tuple[str, dict[str, object], RungOrder | None]] = {
    "ours": ("multi_fidelity", {"kind": "auto"}, None),
    "ours tpe, auto": ("tpe", {"kind": "auto"}, None),
    "ours tpe": ("tpe", ASHA, None),
    "ours tpe, furthest first": ("tpe", ASHA, furthest_first),
    "ours tpe, ranked again": ("tpe", ASHA, ranked_again),
    "ours tpe, earned first": ("tpe", ASHA, earned_first),
    "ours random": ("random", ASHA, None),
    "ours tpe, cautious": ("tpe", {"kind": "asha"}, None),
    "ours tpe, cautious, furthest first": ("tpe", {"kind": "asha"}, furthest_first),
    "ours tpe, cautious, ranked again": ("tpe", {"kind": "asha"}, ranked_again),
    "ours tpe, cautious, earned first": ("tpe", {"kind": "asha"}, earned_first),
    "ours random, cautious": ("random", {"kind": "asha"}, None),
}
BEST_K = "best k after one"
Work = tuple[Path, str, int, int, float, float]


def side_of(table: Table, label: str, seed: int, budget: float) -> Side:
    """The optimizer with this label. Raises ImportError if its package is not installed."""
    if label in OURS:
        kind, policy, order = OURS[label]
        return Ours(spec_of(table, seed, {"kind": kind}, policy), order=order)
    if label == BEST_K:
        spec = spec_of(table, seed, {"kind": "random"}, ASHA)
        return BestK(spec, steps=table.steps, rows=len(table.rows), budget=budget)
    peers = importlib.import_module("table_peers").PEERS
    made: Side = peers[label](table, seed)
    return made


def one(work: Work) -> dict[str, Any]:
    """One run, as a line of the record."""
    path, label, workers, seed, most, limit_s = work
    import logging

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    table = read_table(path)
    if label == BEST_K:  # it plans with its budget, so each budget has a run of its own
        at = {
            cost: play(table, side_of(table, label, seed, cost), workers=workers, budget=cost).at(cost)
            for cost in COSTS
        }
        return _kept(table, work, None, at)
    run = play(table, side_of(table, label, seed, most), workers=workers, budget=most, limit_s=limit_s)
    return _kept(table, work, run, {cost: run.at(cost) for cost in COSTS if cost <= run.spent + 0.05})


def _kept(table: Table, work: Work, run: Run | None, at: dict[int, float]) -> dict[str, Any]:
    _, label, workers, seed, _, _ = work
    found: dict[str, Any] = {"table": table.name, "side": label, "workers": workers, "seed": seed}
    found["at"] = {str(cost): round(regret, 5) for cost, regret in at.items()}
    if run is not None:
        found |= {"proposals": run.proposals, "ms": round(run.ms, 2), "slowest_ms": round(run.slowest_ms, 1)}
    return found


def interval(values: Iterable[float]) -> list[float]:
    """The mean and its 95% bootstrap interval."""
    found = np.array(list(values))
    draws = np.random.default_rng(1).integers(len(found), size=(2000, len(found)))
    low, high = np.percentile(found[draws].mean(axis=1), [2.5, 97.5])
    return [round(float(value), 4) for value in (found.mean(), low, high)]


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """By table and workers, by side: the regret at each cost, and the time of a proposal."""
    sorted_by: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        sorted_by[f"{line['table']}, {line['workers']} workers"][line["side"]].append(line)
    found: dict[str, Any] = {}
    for name, sides in sorted(sorted_by.items()):
        found[name] = {}
        for label, runs in sides.items():
            row: dict[str, Any] = {"seeds": len(runs)}
            for cost in COSTS:
                there = [run["at"][str(cost)] for run in runs if str(cost) in run["at"]]
                if there:
                    row[f"at_{cost}"] = interval(there)
                    if len(there) < len(runs):
                        row[f"at_{cost}_seeds"] = len(there)
            if "ms" in runs[0]:
                row["proposals"] = round(float(np.mean([run["proposals"] for run in runs])))
                row["ms_a_proposal"] = round(float(np.mean([run["ms"] for run in runs])), 1)
            found[name][label] = row
    return found


def show(record: dict[str, Any]) -> None:
    """Print the table."""
    for name, sides in record.items():
        print(f"\n{name}")
        print(f"{'':<26}{'seeds':>6}" + "".join(f"{f'@{cost} runs':>24}" for cost in COSTS) + f"{'ms':>8}")
        for label, row in sides.items():
            cells = ""
            for cost in COSTS:
                said = row.get(f"at_{cost}")
                cells += f"{'' if said is None else f'{said[0]:.4f} [{said[1]:.4f}, {said[2]:.4f}]':>24}"
            print(f"{label:<26}{row['seeds']:>6}{cells}{row.get('ms_a_proposal', math.nan):>8.1f}")


def main() -> None:
    """Run what has not been run yet, and sum up everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="none: sum up what is there")
    parser.add_argument("--sides", default="ours,best k after one,optuna tpe + sh")
    parser.add_argument("--workers", default="4,16")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--most", type=float, default=COSTS[-1], help="the budget, in full runs")
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds of computing after which a run ends"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    kept = asked.out / "tables.jsonl"
    lines = [json.loads(text) for text in kept.read_text("utf-8").splitlines()] if kept.exists() else []
    done = {(line["table"], line["side"], line["workers"], line["seed"]) for line in lines}
    sides = asked.sides.replace(", ", "\0").split(",")
    todo: list[Work] = [
        (path, label, workers, seed, asked.most, asked.limit)
        for seed in range(asked.seeds)
        for path in asked.files
        for workers in (int(text) for text in asked.workers.split(","))
        for label in (text.replace("\0", ", ") for text in sides)
        if (path.name.partition(".")[0], label, workers, seed) not in done
    ]
    with (
        ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool,
        kept.open("a", encoding="utf-8") as file,
    ):
        for future in as_completed([pool.submit(one, work) for work in todo]):
            line = future.result()
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            file.flush()
    record = summary(lines)
    show(record)
    (asked.out / "tables.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
