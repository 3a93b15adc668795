"""100,000 events on a virtual cluster: how well the production placer packs, and how long large trials wait.

    python benchmarks/placement/packing.py --events 100000 --out packing.json --plot packing.svg

Jobs of ¼, ½, 1, 2, 4 and 8 GPUs in four studies keep 60 slots of three device types saturated; every placement is
checked against the benchmark's own accounts. One run compares three placers on the same stream of jobs: the
production placer (best fit, reservations, backfill), the same without reservations (like first-come packing: large
jobs starve), and the same without backfill (like a strict queue: slots idle). The latter two run over fewer
events. Utilisation is measured in slot seconds weighted by speed while work waits. The lower bound on the time is
all work spread evenly over all slots.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from virtual_cluster import MACHINES, SIZES, VirtualCluster

from headrace_services.scheduler.core.placement import BestFit

PLACERS = {
    "headrace": BestFit(),
    "no reservations": BestFit(reserve=False),
    "no backfill": BestFit(backfill=False),
}


def measure(name: str, events: int, seed: int) -> dict[str, Any]:
    """Run one placer."""
    began = time.perf_counter()
    cluster = VirtualCluster(PLACERS[name], seed=seed)
    tally = cluster.run(events)
    took_s = time.perf_counter() - began
    capacity = sum(machine.slots * machine.speed for machine in MACHINES)
    waits = {
        size: {
            "started": len(tally.first_waits_s[size]),
            "mean_s": round(statistics.fmean(tally.first_waits_s[size]), 1),
            "p99_s": round(
                sorted(tally.first_waits_s[size])[int(0.99 * (len(tally.first_waits_s[size]) - 1))], 1
            ),
            "longest_s": round(max(tally.first_waits_s[size]), 1),
        }
        for size, *_ in SIZES
        if tally.first_waits_s[size]
    }
    still = [cluster.now_s - job.submitted_s for job in cluster.waiting if job.size == "8"]
    return {
        "placer": name,
        "events": tally.events,
        "placements": sum(tally.placed.values()),
        "over_commits": tally.over_commits,
        "partial_gangs": tally.partial_gangs,
        "unsuitable": tally.unsuitable,
        "utilisation": round(tally.busy_s / tally.offered_s, 4),
        "lower_bound_over_time": round(tally.work_s / capacity / tally.end_s, 4),
        "first_wait": waits,
        "longest_wait_of_an_8_gpu_job_s": round(max([*tally.first_waits_s["8"], *still]), 1),
        "8_gpu_jobs_still_waiting": len(still),
        "wait_once_reserved_in_rungs": {
            "mean": round(statistics.fmean(tally.reserved_waits or [0]), 3),
            "longest": round(max(tally.reserved_waits, default=0), 3),
        },
        "backfilled": tally.rules["backfill"],
        "left_at_a_rung_for_others": tally.left_for_others,
        "microseconds_per_event": round(took_s / tally.events * 1e6),
    }


def main() -> None:
    """Run all placers, print, and write the record and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--compared", type=int, default=20_000, help="events of the placers beside it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    found = [
        measure(name, options.events if name == "headrace" else options.compared, options.seed)
        for name in PLACERS
    ]
    for record in found:
        print(json.dumps(record, indent=2))
    if options.out:
        options.out.write_text(json.dumps({"seed": options.seed, "results": found}, indent=2) + "\n")
    if options.plot:
        plot(found, options.plot)


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Draw waits by size, and utilisation, of each placer."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(2.2, 1), layout="constrained")
    sizes = [size for size, *_ in SIZES]
    for shift, record in enumerate(found):
        places = [place + (shift - 1) * 0.27 for place in range(len(sizes))]
        means = [record["first_wait"].get(size, {}).get("mean_s", 0) for size in sizes]
        longest = [record["first_wait"].get(size, {}).get("longest_s", 0) for size in sizes]
        longest[-1] = record["longest_wait_of_an_8_gpu_job_s"]
        bars = left.bar(places, means, 0.25, label=record["placer"])
        left.plot(places, longest, "_", color="black", markersize=9)
        right.bar(shift, record["utilisation"], 0.6, color=bars.patches[0].get_facecolor())
        right.text(shift, record["utilisation"] + 0.01, f"{record['utilisation']:.1%}", ha="center")
    left.set_xticks(range(len(sizes)), [f"{size} GPU" for size in sizes])
    left.set_yscale("symlog", linthresh=100)
    left.set_ylabel("wait before the first start, s\n(bar: mean; dash: longest)")
    compared = found[-1]["events"]
    left.set_title(f"{found[0]['events']:,} events ({compared:,} of the others) on 60 GPUs of three types")
    left.legend(frameon=False)
    right.set_xticks(range(len(found)), [record["placer"].replace(" ", "\n") for record in found])
    right.set_ylim(0, 1.08)
    right.set_ylabel("utilisation while work waits")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
