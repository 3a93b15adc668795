"""Random studies whose trials grow and shrink, on shares and on islands of GPUs, while others run and machines
fail.

All of them end: nothing waits forever. No device is given out twice (`ClusterRows` refuses that). Each attempt has
the size that the trial's configuration and progress request, or spare slots.
"""

import random
from typing import Any

import pytest

from headrace.spec import StudySpec, parse_spec
from headrace_services.scheduler.core.placement import request_at
from headrace_services.scheduler.simulator.cluster import Machine
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

VARIANTS = ("promotion", "stopping")
STUCK_BEFORE = (114, 204, 1059)
"""Seeds in which a study kept slots for a trial, and did not start it behind a smaller one that those slots
blocked; and one in which slots were kept for a trial that no longer waited."""


def cluster(chance: random.Random, slots: int) -> tuple[Machine, ...]:
    return tuple(
        Machine(
            id=number,
            name=f"m{number}",
            model=chance.choice(("a", "h")),
            slots=slots,
            island=chance.choice((0, 1, 2, 4)),
            speed=chance.choice((1.0, 2.5)),
        )
        for number in range(1, chance.randint(1, 4) + 1)
    )


def table(chance: random.Random, slots: int) -> list[dict[str, Any]]:
    """Up to two rows."""
    rows = {}
    for step, size in chance.sample([(1, 0.5), (3, 1), (3, 2), (1, 1), (3, slots)], chance.randint(0, 2)):
        rows.setdefault(step, size)
    return [{"from_step": step, "slots": rows[step]} for step in sorted(rows)]


def study(chance: random.Random, slots: int, seed: int) -> StudySpec:
    by_configuration = {"gpus": {"by": "b", 1: 0.25, 2: 1, 3: 2}}
    promoting, stopping = ({"kind": "asha", "variant": kind, "rungs": [1, 3, 9]} for kind in VARIANTS)
    rows = table(chance, slots)
    return parse_spec(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {
                "b": {"type": "categorical", "values": [1, 2, 3]},
                "x": {"type": "float", "low": 0.0, "high": 1.0},
            },
            "resources": chance.choice(
                ({"gpus": 0.25}, {"gpus": 0.5, "cpus": 3}, {"gpus": 1}, by_configuration, {"gpus": 2})
            ),
            "elastic": {"grants": rows, "spare": chance.choice((0, 0, slots))} if rows else None,
            "policy": chance.choice((promoting, stopping, {"kind": "run_all"})),
            "trials": chance.randint(3, 25),
            "steps": 9,
            "seed": seed,
            "priority": chance.choice((0, 0, 1)),
            "weight": chance.choice((1.0, 3.0)),
            "parallel": chance.choice((0, 0, 3)),
        }
    )


@pytest.mark.parametrize("seed", [*range(12), *STUCK_BEFORE])
def test_every_study_ends_and_each_stay_has_its_size(seed: int) -> None:
    chance = random.Random(seed)
    slots = chance.choice((2, 4, 8))
    machines = cluster(chance, slots)
    studies = []
    for number in range(1, chance.randint(1, 4) + 1):
        spec = study(chance, slots, seed)
        costs = chance.choice((Costs(), Costs(write_s=0.5, read_s=0.2), Costs(apart=0.5)))
        curves = SeedModel.of(spec, seed=seed, trials=spec.max_trials + 5)
        studies.append(StudySimulation.of(spec, curves, costs=costs, name=f"s{number}", number=number))
    failures = Failures(mean_time_s=chance.choice((None, 60.0)), detect_s=5.0, repair_s=10.0, seed=seed)
    Simulation(machines, studies, failures=failures).run()
    for one in studies:
        for stay in one.record.stays:
            asked = request_at(one.spec, one.rows.trials[stay.trial].params, stay.from_step)
            spare = one.spec.elastic.spare if one.spec.elastic else 0
            has_spare = stay.milli == 1000 and asked.size < 1000 * len(stay.slots) <= 1000 * spare
            assert (len(stay.slots), stay.milli) == asked.part or has_spare, stay
