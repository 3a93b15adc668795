"""Policies on recorded curves: the GPU time until a value within 1% of the best final one, and the regret.

    python benchmarks/simulator/algoperf.py algoperf_*.csv.gz --out benchmarks/simulator/results

Every run of a file is a configuration; a step is one of its evaluations. For each seed the configurations arrive
in another order, the same for all policies and for Syne Tune's schedulers (`syne_tune_peer`). These run in an
event loop of the same shape: their random search and our run-all must agree to the second. All tools use their
defaults, with η = 3 from the first evaluation on.

`pip install --no-deps syne-tune dill` installs the peer. The files are MLCommons AlgoPerf v0.5 submissions
(Apache-2.0); docs/how-to/simulate-a-study.md says how to get them.
"""

import argparse
import json
import logging
import math
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import peer_loop
import syne_tune_peer as peer

from headrace.spec import RunAllPolicy, StudySpec
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.drawing.regret import Trace, regret_svg
from headrace_services.scheduler.simulator.recorded import CurveFile, RecordedCurves, read_curves
from headrace_services.scheduler.simulator.scenario import Scenario, simulate_seed
from headrace_services.scheduler.simulator.statistics import RESAMPLES, bootstrapped, expected_cost, mean
from headrace_services.scheduler.simulator.variants import Variant, compared

OURS = "run_all,median,asha,asha-stopping,hyperband,pasha"
DEFAULT = "asha"
WITHIN = 0.01
HOUR = 3600.0


def study(file: CurveFile) -> StudySpec:
    """The study of a file: all its runs, up to the length of the longest."""
    return StudySpec.model_validate(
        {
            "objective": {"metric": file.metric or "value", "goal": file.goal or "minimize"},
            "space": {"run": {"type": "int", "low": 0, "high": len(file.curves)}},
            "policy": {"kind": "asha"},
            "max_trials": len(file.curves),
            "max_steps": file.longest,
        }
    )


def variants(spec: StudySpec, names: str) -> tuple[Variant, ...]:
    """Each policy with its own defaults, not with the rungs of another."""
    bare = spec.model_copy(update={"policy": RunAllPolicy()})
    return tuple(compared(bare, name)[0] for name in names.split(","))


def one_seed(work: tuple[Scenario, int]) -> dict[str, dict[str, Any]]:
    """All policies on one seed: their figures and the traces of their regret."""
    logging.disable(logging.CRITICAL)
    scenario, seed = work
    outcomes = simulate_seed(scenario, seed)
    found: dict[str, dict[str, Any]] = {}
    for label, outcome in outcomes.items():
        s = outcome.summary
        assert s.best_value is not None
        found[label] = {
            "slot_s": s.slot_s,
            "wall_s": s.wall_s,
            "regret": s.regret,
            "to_target_s": s.to_target_s,
            "to_target_slot_s": s.to_target_slot_s,
            "idle_pending": s.idle_pending,
            "trace": [
                (
                    one.slot_s,
                    abs(one.value - s.best_value) if _worse(scenario, one.value, s.best_value) else 0.0,
                )
                for one in outcome.improvements
            ],
        }
    assert scenario.file is not None
    spec = scenario.spec
    order = RecordedCurves.shuffled(scenario.file, seed=seed, trials=spec.max_trials).order
    slots = sum(machine.slots for machine in scenario.machines)
    task = peer_loop.Task(maximize=spec.maximizes(), max_t=spec.max_steps, trials=spec.max_trials, seed=seed)
    for label, make in peer.PEERS.items():
        run = peer_loop.run(make, order, task, workers=slots, within=WITHIN)
        found[label] = {**asdict(run), "idle_pending": None}
    return found


def _worse(scenario: Scenario, value: float, best: float) -> bool:
    return value < best if scenario.spec.maximizes() else value > best


def all_seeds(scenario: Scenario, seeds: range, processes: int, kept: Path | None) -> list[dict[str, Any]]:
    """All policies on every seed. Results computed earlier and stored in the folder `kept` are read from there."""
    results: dict[int, dict[str, Any]] = {}
    for seed in seeds:
        if kept is not None and (kept / f"{seed}.json").exists():
            results[seed] = json.loads((kept / f"{seed}.json").read_text(encoding="utf-8"))
    todo = [seed for seed in seeds if seed not in results]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        for seed, result in zip(todo, pool.map(one_seed, [(scenario, seed) for seed in todo]), strict=True):
            results[seed] = result
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"{seed}.json").write_text(json.dumps(result), encoding="utf-8")
    return [results[seed] for seed in seeds]


def evaluate(
    file: CurveFile, names: str, workers: int, seeds: range, processes: int, plot: Path, kept: Path | None
) -> dict[str, Any]:
    """One workload on that many workers: estimates for all policies, and our ASHA against the best peer."""
    spec = study(file)
    scenario = Scenario(variants=variants(spec, names), machines=machines(workers), file=file, within=WITHIN)
    results = all_seeds(scenario, seeds, processes, kept)
    for result in results:
        ours, theirs = result["run_all"], result[peer.RANDOM]
        assert math.isclose(ours["to_target_s"], theirs["to_target_s"], rel_tol=1e-9), (
            "the event loops differ"
        )
        assert math.isclose(ours["slot_s"], theirs["slot_s"], rel_tol=1e-9), "the event loops differ"
    labels = list(results[0])
    rows = {label: _row([result[label] for result in results]) for label in labels}
    traces: dict[str, list[Trace]] = {
        label: [result[label]["trace"] for result in results]
        for label in labels
        if results[0][label]["trace"]
    }
    title = f"{file.metric}, {len(file.curves)} recorded runs on {workers} workers, {len(seeds)} orders of arrival"
    plot.write_text(
        regret_svg(traces, title=title, unit=(HOUR, "GPU hours spent"), floor=1e-5), encoding="utf-8"
    )
    peers = {label: rows[label] for label in peer.PEERS if label != peer.RANDOM}
    best = min(peers, key=lambda label: peers[label]["to_target_gpu_h"]["mean"] or math.inf)
    return {
        "runs": len(file.curves),
        "workers": workers,
        "seeds": f"{seeds.start} to {seeds.stop - 1}",
        "steps": spec.max_steps,
        "rungs": list(spec.rungs()),
        "policies": rows,
        "best_peer": best,
        "against_best_peer": {
            label: _against([r[label] for r in results], [r[best] for r in results])
            for label in (DEFAULT, "asha-stopping")
            if label in rows
        },
    }


def _row(found: list[dict[str, Any]]) -> dict[str, Any]:
    spent = [one["slot_s"] / HOUR for one in found]
    reached = [None if one["to_target_slot_s"] is None else one["to_target_slot_s"] / HOUR for one in found]
    walls = [None if one["to_target_s"] is None else one["to_target_s"] / HOUR for one in found]
    idle = [one["idle_pending"] for one in found if one["idle_pending"] is not None]
    return {
        "to_target_gpu_h": _rounded(expected_cost(reached, spent)),
        "to_target_wall_h": _rounded(expected_cost(walls, [one["wall_s"] / HOUR for one in found])),
        "reached": sum(one is not None for one in reached),
        "regret": _rounded(bootstrapped([one["regret"] for one in found])),
        "gpu_h": _rounded(mean(spent)),
        "wall_h": _rounded(mean([one["wall_s"] / HOUR for one in found])),
        "idle_while_work_waits": max(idle) if idle else None,
    }


def _rounded(estimate: Any) -> dict[str, Any]:
    return {key: None if value is None else float(f"{value:.5g}") for key, value in asdict(estimate).items()}


def _against(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """The ratio of the expected costs and the difference of the regrets, with paired bootstrap intervals over
    seeds."""
    picks = np.random.default_rng(1).integers(len(ours), size=(RESAMPLES, len(ours)))

    def cost(found: list[dict[str, Any]]) -> np.ndarray:
        hits = np.array([one["to_target_slot_s"] is not None for one in found])
        spent = np.array([one["to_target_slot_s"] or one["slot_s"] for one in found])
        with np.errstate(divide="ignore"):
            return np.concatenate(
                [[spent.sum() / hits.sum()], spent[picks].sum(axis=1) / hits[picks].sum(axis=1)]
            )

    ratio = cost(ours) / cost(theirs)
    gaps = np.array([a["regret"] - b["regret"] for a, b in zip(ours, theirs, strict=True)])
    resampled = gaps[picks].mean(axis=1)
    return {
        "cost_ratio": [float(f"{x:.4g}") for x in (ratio[0], *np.percentile(ratio[1:], [2.5, 97.5]))],
        "regret_difference": [
            float(f"{x:.3g}") for x in (gaps.mean(), *np.percentile(resampled, [2.5, 97.5]))
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--workers", default="16,64")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--first-seed", type=int, default=0, help="of the seeds, which are counted up from it"
    )
    parser.add_argument("--policies", default=OURS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a folder for the seeds' results, to go on from")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for path in options.files:
        file = read_curves(path)
        name = path.name.partition(".")[0]
        for workers in (int(text) for text in options.workers.split(",")):
            began = time.perf_counter()
            plot = options.out / f"{name}_{workers}.svg"
            kept = options.keep / f"{name}_{workers}" if options.keep else None
            found = evaluate(file, options.policies, workers, seeds, options.processes, plot, kept)
            record[f"{name}, {workers} workers"] = found
            print(f"\n{name}, {workers} workers, {len(seeds)} seeds ({time.perf_counter() - began:.0f} s)")
            _print(found)
    (options.out / "algoperf.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _print(found: dict[str, Any]) -> None:
    heads = ("GPU h to target", "reached", "regret", "GPU h", "wall h", "idle")
    widths = (26, 9, 34, 9, 9, 8)
    print(f"{'policy':<20}" + "".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True)))
    for label, row in found["policies"].items():
        idle = row["idle_while_work_waits"]
        cells = (
            _told(row["to_target_gpu_h"], ".1f"),
            str(row["reached"]),
            _told(row["regret"], ".5f"),
            f"{row['gpu_h']['mean']:.1f}",
            f"{row['wall_h']['mean']:.1f}",
            "-" if idle is None else f"{idle:.2%}",
        )
        print(f"{label:<20}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
    for label, against in found["against_best_peer"].items():
        ratio, gap = against["cost_ratio"], against["regret_difference"]
        print(
            f"{label} against {found['best_peer']}: cost {ratio[0]} ({ratio[1]}–{ratio[2]}) of it, "
            f"regret {gap[0]:+} ({gap[1]:+}–{gap[2]:+})",
            flush=True,
        )


def _told(estimate: dict[str, Any], form: str) -> str:
    if estimate["mean"] is None:
        return "never"
    if estimate["low"] is None:
        return format(estimate["mean"], form)
    high = "∞" if estimate["high"] is None else format(estimate["high"], form)
    return f"{estimate['mean']:{form}} ({estimate['low']:{form}}–{high})"


if __name__ == "__main__":
    main()
