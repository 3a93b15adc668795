"""Trials of 1, 2 and 4 slots in one study: its file, its simulation, and how long each size waited for its turn."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from headrace.spec import StudySpec
from headrace.spec.file import parse_study_text
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

FILE = """
name: unequal
trial: {{callable: "{program}", env: {{STEP_S: "{step_s}"}}}}
objective: {{metric: loss, goal: minimize}}
space:
  batch_size: {{type: int, low: 1, high: 100}}
  lr: {{type: float, low: 0.001, high: 0.1, log: true}}
policy: {{kind: {policy}}}
trials: {trials}
steps: {steps}
seed: {seed}
resources: {{{kind}: {{by: batch_size, from: {{1: 1, 61: 2, 81: 4}}}}}}
"""


def unequal(
    trials: int,
    *,
    policy: str = "asha",
    steps: int = 9,
    seed: int = 1,
    kind: str = "gpus",
    program: str = "unequal_trial:train",
    step_s: float = 0.0,
    folder: Path = Path("/"),
) -> StudySpec:
    """Six of ten trials take 1 slot, two of ten take 2, and two take 4."""
    text = FILE.format(
        trials=trials, policy=policy, steps=steps, seed=seed, kind=kind, program=program, step_s=step_s
    )
    return parse_study_text(text, folder=folder)[1]


class Stay(Struct, frozen=True, kw_only=True):
    """A trial on its slots, in seconds."""

    trial: int
    slots: int
    start_s: float
    end_s: float


class Tally(Struct, frozen=True, kw_only=True):
    """The statistics of the trials."""

    end_s: float
    utilisation: float
    """The fraction of all slot time until the end that was in use."""
    trials: dict[int, int]
    """How many trials took each number of slots."""
    longest_wait_s: dict[int, float]
    """By number of slots: the time from the first start of all earlier trials until a trial's own start."""
    longest_stay_s: float

    @classmethod
    def of(cls, stays: Iterable[Stay], slots: int) -> "Tally":
        """Sum up, for a cluster with that many slots."""
        stays = list(stays)
        sizes = {stay.trial: stay.slots for stay in stays}
        first: dict[int, float] = {}
        for stay in stays:
            first[stay.trial] = min(stay.start_s, first.get(stay.trial, stay.start_s))
        waits: dict[int, float] = defaultdict(float)
        turn_s = began_s = min(first.values())
        for trial in sorted(first):
            waits[sizes[trial]] = max(waits[sizes[trial]], first[trial] - turn_s)
            turn_s = max(turn_s, first[trial])
        end_s = max(stay.end_s for stay in stays) - began_s
        busy_s = sum((stay.end_s - stay.start_s) * stay.slots for stay in stays)
        return cls(
            end_s=end_s,
            utilisation=busy_s / slots / end_s,
            trials=dict(sorted(Counter(sizes.values()).items())),
            longest_wait_s=dict(sorted(waits.items())),
            longest_stay_s=max(stay.end_s - stay.start_s for stay in stays),
        )


def simulate(spec: StudySpec, *, workers: int = 2, slots: int = 4) -> tuple[Tally, StudySimulation]:
    """Run the study on simulated workers, one second per step."""
    study = StudySimulation.of(spec, SeedModel.of(spec, seed=spec.seed, trials=spec.max_trials), log=True)
    Simulation(machines(workers, slots=slots), [study]).run()
    stays = [
        Stay(trial=stay.trial, slots=len(stay.slots), start_s=stay.start_s, end_s=stay.end_s)
        for stay in study.record.stays
    ]
    return Tally.of(stays, workers * slots), study


def previewed(sizes: Iterable[Any]) -> dict[int, int]:
    """Trials by number of slots, as a preview says."""
    return {size.gpus or max(1, size.cpus): size.trials for size in sizes if size.trials}
