"""Sixty trials of 1, 2 and 4 slots in one study: utilisation, the longest wait of each size, and what a preview said.

    python benchmarks/scheduler/unequal.py --out benchmarks/results/unequal.json

Simulated: two workers of four slots, one second per step, five seeds for each policy, with and without
reservations. Real: `headrace up --slots 4` with its own Postgres, where trials are sleeping processes of 1, 2 or 4
CPU slots (about one minute on two cores). A wait starts when all trials with lower numbers have started.
Utilisation includes the end of the study, when fewer trials than slots are left.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from headrace import Client
from headrace_services.scheduler.core import sharing
from headrace_services.scheduler.core.placement import BestFit
from headrace_services.scheduler.preview import preview

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "placement"))

from placement_site import PROGRAMS, site  # noqa: E402  the tests' own cluster, found by the line above
from unequal_study import Stay, Tally, previewed, simulate, unequal  # noqa: E402  the tests' own study, likewise

TRIALS = 60
SEEDS = range(1, 6)
POLICIES = ("run_all", "asha", "hyperband", "median")
STAYS = """
    SELECT trial.number, cardinality(slots), extract(epoch FROM start_time)::float,
        extract(epoch FROM trial.end_time)::float
    FROM trial JOIN lease USING (study_id, number) JOIN grant_part USING (grant_id)
"""


def simulated(policy: str, *, reserve: bool) -> dict[str, Any]:
    """A row of the table: the mean utilisation, the longest waits over all seeds."""
    sharing.PLACER = BestFit(reserve=reserve)
    tallies, agree = [], True
    for seed in SEEDS:
        spec = unequal(TRIALS, policy=policy, seed=seed)
        tally, _ = simulate(spec)
        tallies.append(tally)
        agree &= tally.trials == previewed(preview(spec, 8).sizes)
    where = f"simulated, {policy}" + ("" if reserve else ", no reservations")
    return row(where, tallies, agree)


def real() -> dict[str, Any]:
    """The same study as processes on the CPU slots of this machine."""
    spec = unequal(TRIALS, policy="run_all", steps=4, kind="cpus", step_s=0.25, folder=PROGRAMS)
    with tempfile.TemporaryDirectory() as folder, site(Path(folder), own_slots=4) as here:
        with Client(here.address) as client:
            said = previewed(client.preview(spec).sizes)
        here.create("unequal", spec)
        here.finished("unequal", 600)
        stays = [
            Stay(trial=number, slots=slots, start_s=start_s, end_s=end_s)
            for number, slots, start_s, end_s in here.rows(STAYS)
        ]
    tally = Tally.of(stays, 4)
    return row("4 CPU slots, run_all", [tally], tally.trials == said)


def row(where: str, tallies: list[Tally], agree: bool) -> dict[str, Any]:
    """The row to print and keep."""
    waits = {slots: max(tally.longest_wait_s[slots] for tally in tallies) for slots in (1, 2, 4)}
    return {
        "where": where,
        "trials": tallies[0].trials,
        "utilisation": round(statistics.fmean(tally.utilisation for tally in tallies), 3),
        "end_s": round(statistics.fmean(tally.end_s for tally in tallies), 1),
        "longest_wait_s": {slots: round(wait, 2) for slots, wait in waits.items()},
        "longest_stay_s": round(max(tally.longest_stay_s for tally in tallies), 2),
        "preview_agrees": agree,
    }


def main() -> None:
    """Run both, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--simulated-only", action="store_true")
    options = parser.parse_args()
    found = [simulated(policy, reserve=reserve) for policy in POLICIES for reserve in (True, False)]
    if not options.simulated_only:
        found.append(real())
    print(
        "| where | utilisation | end (s) | longest wait (s): 1, 2, 4 slots | longest stay (s) | preview agrees |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for one in found:
        waits = ", ".join(f"{wait:g}" for wait in one["longest_wait_s"].values())
        agrees = "yes" if one["preview_agrees"] else "no"
        print(
            f"| {one['where']} | {one['utilisation']} | {one['end_s']:g} | {waits} | {one['longest_stay_s']:g} "
            f"| {agrees} |"
        )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
