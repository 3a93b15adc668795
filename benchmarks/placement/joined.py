"""Gangs on GPUs in islands of four with a fast interconnect: placed by the interconnect, and without knowledge of
it.

    python benchmarks/placement/joined.py --out benchmarks/results/joined.json

Simulated: two workers of eight GPUs, each with two groups of four connected by NVLink; 60 trials of 1, 2 and 4
GPUs, with one second per step on one GPU and linear speed-up on several. A gang across islands trains at 0.6 times
the speed. Ten seeds for each policy. "Apart" is the share of the gangs' slot time on slots that NVLink does not
connect.
"""

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from headrace_services.scheduler.core.placement import reserving, speeds
from headrace_services.scheduler.core.placement.joints import Link, joint
from headrace_services.scheduler.core.records import Slot
from headrace_services.scheduler.simulator.cluster import Machine, parse_types
from headrace_services.scheduler.simulator.costs import Costs
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

HERE = Path(__file__).parent
fit = importlib.import_module("headrace_services.scheduler.core.placement.fit")  # a function has its name
sys.path.insert(0, str(HERE.parents[1] / "tests" / "placement"))

from unequal_study import unequal  # noqa: E402  the tests' own study, found by the line above

SEEDS = range(1, 11)
POLICIES = ("run_all", "asha", "hyperband")
CLUSTER = "h100:2x8~4"
APART = 0.6


@contextmanager
def blind() -> Iterator[None]:
    """Place as if no worker had reported its interconnects."""

    def first(slots: list[Slot], count: int) -> list[Slot]:
        return list(slots[:count])

    with (
        patch.object(fit, "choose", first),
        patch.object(reserving, "choose", first),
        patch.object(speeds, "choose", first),
        patch.object(fit, "cost", lambda _: 0),
        patch.object(reserving, "cost", lambda _: 0),
        patch.object(fit, "preference_of", lambda *_: 0.0),
        patch.object(reserving, "preference_of", lambda *_: 0.0),
    ):
        yield


def simulate(policy: str, seed: int, machines: tuple[Machine, ...]) -> tuple[float, float]:
    """The time to the end, and the share of the gangs' slot time spent apart."""
    spec = unequal(60, policy=policy, seed=seed)
    curves = SeedModel.of(spec, seed=seed, trials=spec.max_trials)
    study = StudySimulation.of(spec, curves, costs=Costs(apart=APART))
    Simulation(machines, [study]).run()
    devices = {machine.id: machine.devices() for machine in machines}
    apart_s = gangs_s = 0.0
    for stay in study.record.stays:
        slots = [devices[stay.worker][index] for index in stay.slots]
        if len(slots) > 1:
            held_s = (stay.end_s - stay.start_s) * len(slots)
            gangs_s += held_s
            apart_s += held_s * (joint(slots) is not Link.NVLINK)
    return study.record.end_s, apart_s / gangs_s if gangs_s else 0.0


def row(policy: str, *, knows: bool) -> dict[str, Any]:
    """The row to print and keep: means over the seeds."""
    machines = parse_types(CLUSTER)
    if knows:
        found = [simulate(policy, seed, machines) for seed in SEEDS]
    else:
        with blind():
            found = [simulate(policy, seed, machines) for seed in SEEDS]
    return {
        "policy": policy,
        "placed": "by joints" if knows else "blind",
        "end_s": round(statistics.fmean(end_s for end_s, _ in found), 1),
        "apart": round(statistics.fmean(apart for _, apart in found), 3),
    }


def main() -> None:
    """Run both, print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = [row(policy, knows=knows) for policy in POLICIES for knows in (True, False)]
    print("| policy | placed | end (s) | apart |\n| --- | --- | --- | --- |")
    for one in found:
        print(f"| {one['policy']} | {one['placed']} | {one['end_s']:g} | {one['apart']:.1%} |")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
