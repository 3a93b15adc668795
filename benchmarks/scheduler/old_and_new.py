"""Reports per second and the delay of a lone report, or a fresh process's relaunch: today's against an older
commit's, in alternating turns.

Each turn runs `bench_load.py` of one checkout, with that checkout's packages, or with `--of relaunch` this checkout's
`bench_relaunch.py` with that checkout's packages. The order changes from pair to pair
(old, new, new, old, …), because a machine's speed drifts. For each figure: the median of the ratios new to old
over the pairs, with a 90 % bootstrap interval.

    git worktree add ../old b0a4824
    python benchmarks/scheduler/old_and_new.py ../old --pairs 6

Both checkouts use the environment that runs this. Writes `old_and_new_load.json` or `old_and_new_relaunch.json`
into `--out`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmark_site import percentiles_ms, write_record

HERE = Path(__file__).resolve().parents[2]
TRIES = 3
"""A turn whose lone worker has no trial left when it is to be measured fails, and is repeated."""


def environ_of(checkout: Path) -> dict[str, str]:
    """The variables under which a program takes the packages of `checkout`."""
    packages = [checkout / "clients" / "python", checkout / "services", checkout / "worker"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))}


def load(checkout: Path, trials: int) -> dict[str, float]:
    """Run the load of one checkout. Returns its figures."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(checkout / "benchmarks/scheduler/bench_load.py")]
        command += ["--trials", str(trials), "--out", out]
        for _ in range(TRIES):
            done = subprocess.run(command, env=environ_of(checkout), cwd=checkout, stdout=subprocess.DEVNULL)
            if not done.returncode:
                break
        record = json.loads((Path(out) / "load.json").read_text())
    summary, last = record["summary"], record["alone"][-1]
    return {
        "reports_per_s": summary["reports_per_s"],
        "p99_alone_ms": summary["p99_alone_ms"],
        "p50_alone_ms": last["p50_ms"],
        "scheduler_us": summary["cost_of_a_report"]["scheduler_us"],
        "postgres_us": summary["cost_of_a_report"]["postgres_us"],
    }


def relaunch(checkout: Path, trials: int) -> dict[str, Any]:
    """Start trials one after another, each in a new process, with one checkout's packages."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(HERE / "benchmarks/scheduler/bench_relaunch.py")]
        command += ["--cold", "--trials", str(trials), "--out", out]
        subprocess.run(command, env=environ_of(checkout), cwd=out, stdout=subprocess.DEVNULL, check=True)
        record = json.loads((Path(out) / "relaunch.json").read_text())
    return {
        f"{name}: {figure}": found[figure]
        for name, found in record["results"].items()
        for figure in ("p50_ms", "p99_ms", "processor_ms", "all_ms")
    }


MEASURED = {"load": (load, 2000), "relaunch": (relaunch, 60)}
"""What a turn runs, and with how many trials unless told."""


def interval(ratios: list[float]) -> tuple[float, float]:
    """A 90 % bootstrap interval of the median."""
    chance = random.Random(1)
    medians = [median(chance.choices(ratios, k=len(ratios))) for _ in range(2000)]
    cuts = quantiles(medians, n=20)
    return round(cuts[0], 3), round(cuts[-1], 3)


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="a checkout of the older commit")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--of", choices=MEASURED, default="load", help="what a turn measures")
    parser.add_argument("--trials", type=int, help="per turn and case")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    arguments = parser.parse_args()
    turn, trials = MEASURED[arguments.of]
    old = arguments.old.resolve()
    commit = subprocess.run(
        ["git", "-C", str(old), "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    pairs: list[dict[str, Any]] = []
    for number in range(arguments.pairs):
        order = ("old", "new") if number % 2 == 0 else ("new", "old")
        pair = {name: turn(old if name == "old" else HERE, arguments.trials or trials) for name in order}
        pairs.append(pair)
        shown = {
            name: {figure: value for figure, value in found.items() if not isinstance(value, list)}
            for name, found in pair.items()
        }
        print(json.dumps({"pair": number + 1, **shown}), flush=True)
    ratios: dict[str, Any] = {}
    for figure, example in pairs[0]["new"].items():
        if not isinstance(example, list):
            found = [pair["new"][figure] / pair["old"][figure] for pair in pairs]
            ratios[figure] = {"median": round(median(found), 3), "interval_90": interval(found)}
            continue
        for name in ("old", "new"):  # the percentiles of all turns together
            together = [ms / 1e3 for pair in pairs for ms in pair[name][figure]]
            ratios.setdefault(figure, {})[name] = percentiles_ms(together)
    print(json.dumps(ratios, indent=1))
    write_record(arguments.out / f"old_and_new_{arguments.of}.json", old=commit, ratios=ratios, pairs=pairs)


if __name__ == "__main__":
    main()
