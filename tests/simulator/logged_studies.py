"""Studies whose event logs are kept as digests: the scheduler's decisions must not change unnoticed.

Each scenario is drawn from its number alone: a policy, a cluster, one to three studies that share it, machines
that fail, trials whose program fails, and what users do meanwhile. `logs` runs it on virtual time and returns
every event of every study. Two digests of each scenario are kept: one of everything, and one without the sentences
for people. A change that only rewords sentences changes the first and not the second.
`python tests/simulator/logged_studies.py --write` stores the digests of today's code.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import HeadraceError
from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import (
    AddTrials,
    ExitedArrived,
    Input,
    PauseStudy,
    PauseTrial,
    ResumeStudy,
    ResumeTrial,
    StopStudy,
    StopTrial,
)
from headrace_services.scheduler.core.records import Event
from headrace_services.scheduler.simulator.cluster import Machine
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation, SimulationError
from headrace_services.scheduler.simulator.study import StudySimulation

KEPT = Path(__file__).with_name("event_logs.json")
COUNT = 300
SENTENCES = frozenset({"detail", "reason", "sentence"})
"""The keys in an event's detail that hold a sentence for people; its message is one too."""
POLICIES: tuple[dict[str, Any], ...] = (
    {"kind": "run_all"},
    {"kind": "asha", "eta": 3},
    {"kind": "asha", "eta": 4, "variant": "stopping"},
    {"kind": "asha", "eta": 3, "brackets": 2},
    {"kind": "asha", "eta": 3, "price_pauses": True},
    {"kind": "successive_halving", "eta": 3},
    {"kind": "hyperband", "eta": 3},
    {"kind": "pasha", "eta": 3},
    {"kind": "median", "variant": "vizier"},
    {"kind": "rung_median"},
    {"kind": "median"},
    {"kind": "pbt", "interval": 3},
)


def logs(number: int) -> dict[str, list[list[Any]]]:
    """The event log of each study of a scenario."""
    chance = random.Random(f"headrace event logs {number}")
    machines = _machines(chance)
    count = chance.choice((1, 1, 1, 2, 3))
    studies = [
        _study(chance, POLICIES[(number + place) % len(POLICIES)], machines, place) for place in range(count)
    ]
    failures = Failures(
        mean_time_s=chance.choice((None, None, 40.0, 150.0)), detect_s=2.0, repair_s=5.0, seed=number
    )
    simulation = Simulation(machines, studies, failures=failures)
    for study in studies:
        _meddle(chance, simulation, study)
    try:
        simulation.run()
    except SimulationError as error:  # a user paused what nobody resumes
        _note(studies[0], "stuck", str(error))
    return {
        study.rows.study.name: [
            [event.number, event.kind, event.message, event.detail] for event in study.rows.events or ()
        ]
        for study in studies
    }


class Digests(NamedTuple):
    """Two digests of the same logs. Neither includes the last digits of a number, in which machines differ."""

    everything: str
    without_sentences: str


def digests(number: int) -> Digests:
    """The digests of a scenario's logs."""
    return digests_of(logs(number))


def digests_of(found: dict[str, list[list[Any]]]) -> Digests:
    """The digests of these logs."""
    found = _rounded(found)
    bare = {
        study: [[trial, kind, _without_sentences(detail)] for trial, kind, _, detail in events]
        for study, events in found.items()
    }
    return Digests(_digest(found), _digest(bare))


def kept() -> dict[int, Digests]:
    """The stored digests, by scenario."""
    return {int(number): Digests(*pair) for number, pair in json.loads(KEPT.read_text()).items()}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_sentences(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_sentences(one) for key, one in value.items() if key not in SENTENCES}
        case list():
            return [_without_sentences(one) for one in value]
    return value


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
    return value


def _note(study: StudySimulation, kind: str, message: str) -> None:
    """Something that no event of the study shows."""
    assert study.rows.events is not None
    study.rows.events.append(Event(number=None, kind=kind, message=message, detail={}))


def _machines(chance: random.Random) -> tuple[Machine, ...]:
    slots = chance.choice((1, 1, 2, 4))
    return tuple(
        Machine(
            id=number,
            name=f"w{number}",
            model=chance.choice(("a100", "h100")),
            slots=slots,
            speed=chance.choice((1.0, 1.0, 2.5)),
        )
        for number in range(1, chance.randint(1, 5) + 1)
    )


def _study(
    chance: random.Random, policy: dict[str, Any], machines: tuple[Machine, ...], place: int
) -> StudySimulation:
    most = machines[0].slots
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": chance.choice(("minimize", "maximize"))},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": policy,
        "max_trials": chance.randint(4, 30),
        "max_steps": chance.choice((9, 27)),
        "max_parallel": chance.choice((0, 0, 0, 3)),
        "max_retries": chance.choice((0, 1, 2)),
        "weight": chance.choice((1.0, 1.0, 3.0)),
        "priority": chance.choice((0, 0, 1)),
        "seed": chance.randrange(1000),
        "resources": chance.choice(
            ({}, {}, {"gpus": min(2, most)}, {"gpu_milli": 250, "gpu_memory_bytes": 8 << 30})
        ),
    }
    if chance.random() < 0.5:
        fields["baseline"] = {"x": 0.5}
    if fields["resources"] == {"gpus": min(2, most)} and most >= 4 and policy["kind"] == "asha":
        fields["elastic"] = {"grants": [{"from_step": 3, "slots": 4}]}
    spec = _sound(fields)
    costs = chance.choice((Costs(), Costs(write_s=0.5, read_s=0.25, start_s=1.0), Costs.of_size(2e9, 1e9)))
    curves = SeedModel.of(spec, seed=spec.seed, trials=spec.max_trials + 20)
    return StudySimulation.of(spec, curves, costs=costs, name=f"study-{place}", number=place + 1, log=True)


def _sound(fields: dict[str, Any]) -> StudySpec:
    """The spec; without its elastic grants if these do not start at a rung of its policy."""
    try:
        return StudySpec.model_validate(fields)
    except ValueError:
        return StudySpec.model_validate({**fields, "elastic": None})


def _meddle(chance: random.Random, simulation: Simulation, study: StudySimulation) -> None:
    """What users do while a study runs, and programs that fail."""
    for _ in range(chance.choice((0, 0, 2, 4, 6))):
        at_s, what = chance.uniform(0.0, 120.0), chance.choice(_MEDDLING)
        number = chance.randrange(study.spec.max_trials)
        for after_s, one in what(number):
            _later(simulation, study, at_s + after_s, one)
    for _ in range(chance.choice((0, 0, 1, 5))):
        _fail_later(simulation, study, chance.uniform(0.0, 60.0))


def _hold_trial(number: int) -> Iterator[tuple[float, Input]]:
    yield 0.0, PauseTrial(number=number)
    yield 15.0, ResumeTrial(number=number)


def _hold_study(_: int) -> Iterator[tuple[float, Input]]:
    yield 0.0, PauseStudy()
    yield 20.0, ResumeStudy()


def _stop_trial(number: int) -> Iterator[tuple[float, Input]]:
    yield 0.0, StopTrial(number=number, reason="a user's reason")


def _add_trials(_: int) -> Iterator[tuple[float, Input]]:
    yield 0.0, AddTrials(params=({"x": 0.25}, {"x": 0.75}))


def _stop_study(_: int) -> Iterator[tuple[float, Input]]:
    yield 200.0, StopStudy(reason="enough")


_MEDDLING: tuple[Callable[[int], Iterator[tuple[float, Input]]], ...] = (
    _hold_trial,
    _hold_trial,
    _hold_study,
    _stop_trial,
    _add_trials,
    _stop_study,
)


def _later(simulation: Simulation, study: StudySimulation, at_s: float, one: Input) -> None:
    def happen() -> None:
        if not study.over:
            try:
                simulation._step(study, one)
            except HeadraceError as error:  # refused, as a user would be
                _note(study, "refused", str(error))

    simulation._at(at_s, (0, 0), happen)


def _fail_later(simulation: Simulation, study: StudySimulation, at_s: float) -> None:
    """Let the program of the running trial with the lowest number end with an error."""

    def happen() -> None:
        if study.over or not study.runs:
            return
        run = min(study.runs.values(), key=lambda one: one.lease.number)
        exited = ExitedArrived(
            lease_id=run.lease.id,
            number=run.lease.number,
            attempt=run.lease.attempt,
            sequence=run.next_sequence(),
            outcome="FAILED",
            error="ValueError: drawn",
        )
        simulation._step(study, exited)
        simulation._end(run, "failed")

    simulation._at(at_s, (0, 0), happen)


def main() -> int:
    """Returns the exit status: 1 if a log differs from the stored one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep the digests of today's code")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print the logs of one scenario")
    options = parser.parse_args()
    if options.show is not None:
        print(json.dumps(logs(options.show), indent=1, sort_keys=True, ensure_ascii=False))
        return 0
    found = {number: digests(number) for number in range(COUNT)}
    if options.write:
        KEPT.write_text("{\n" + ",\n".join(f'"{n}": {json.dumps(one)}' for n, one in found.items()) + "\n}\n")
        print(f"{KEPT.name}: {COUNT} scenarios, two digests each")
        return 0
    before = kept()
    decided = [n for n in found if found[n].without_sentences != before[n].without_sentences]
    worded = [n for n in found if found[n] != before[n] and n not in decided]
    print(
        f"{COUNT - len(decided)} of {COUNT} logs are as they were kept, sentences apart; others: {_listed(decided)}"
    )
    print(f"{len(worded)} logs changed in their sentences only: {_listed(worded)}")
    return bool(decided or worded)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


if __name__ == "__main__":
    sys.exit(main())
