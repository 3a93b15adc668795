"""Targets on virtual time: a study that takes the best configurations of another one, early on idle slots."""

from typing import Any

import pytest
from msgspec.structs import replace
from simulated_studies import flat, make_spec

from headrace_services.scheduler.core.best_of import next_request
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.records import Event
from headrace_services.scheduler.simulator.cluster import machines, parse_types
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

RUN_ALL = {"kind": "run_all"}
POLICIES: dict[str, dict[str, Any]] = {
    "promotion": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]},
    "stopping": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"},
    "hyperband": {"kind": "hyperband", "eta": 3},
    "run_all": RUN_ALL,
}


def search_of(values: list[float | None] | None = None, *, seed: int = 0, **changes: Any) -> StudySimulation:
    spec = make_spec(**{"policy": RUN_ALL, **({"max_trials": len(values)} if values else {}), **changes})
    curves = flat(values) if values else SeedModel.of(spec, seed=seed, trials=spec.max_trials)
    return StudySimulation.of(spec, curves, name="search", number=1, log=True)


def target_of(top: int = 3, eager: float | None = 1.0, **changes: Any) -> StudySimulation:
    sampler = {"kind": "best_of", "study": "search", "eager": eager}
    spec = make_spec(**{"policy": RUN_ALL, "sampler": sampler, "max_trials": top, **changes})
    return StudySimulation.of(spec, flat([0.5] * top), name="search-target", number=2, log=True)


def run(workers: int, *studies: StudySimulation, slots: int = 1) -> list[StudySimulation]:
    Simulation(machines(workers, slots=slots), studies).run()
    assert all(study.rows.study.state is StudyState.COMPLETED for study in studies)
    return list(studies)


def sources(target: StudySimulation) -> list[int | None]:
    return [trial.source for trial in target.rows.trials.values()]


def begins(study: StudySimulation) -> list[float]:
    return sorted(stay.start_s for stay in study.record.stays)


def created(study: StudySimulation) -> list[Event]:
    return [event for event in study.rows.events or () if event.kind == "trial_created"]


def proposal(event: Event) -> dict[str, Any]:
    found = event.detail["proposal"]
    assert isinstance(found, dict)
    return found


def test_on_idle_slots_the_best_so_far_begin_and_the_last_place_is_for_the_best_of_all() -> None:
    """Three workers and four trials: at 90 s two slots idle beside the fourth trial, which turns out to be the
    best."""
    search, target = run(3, search_of([3, 1, 2, 0.5]), target_of())
    assert search.record.end_s == 180
    assert sources(target) == [1, 2, 3]
    assert begins(target) == [90, 90, 180]
    assert [proposal(event).get("early", "") for event in created(target)] == [
        "a slot was idle",
        "a slot was idle",
        "",
    ]
    assert "has the configuration of trial 1, taken early as a slot was idle" in created(target)[0].message


def test_without_eager_all_of_them_wait_for_the_end() -> None:
    _, target = run(3, search_of([3, 1, 2, 0.5]), target_of(eager=None))
    assert sources(target) == [3, 1, 2]
    assert begins(target) == [180] * 3


def test_before_a_trial_has_had_its_full_budget_no_slot_is_used() -> None:
    """A third worker is idle from the start."""
    _, target = run(3, search_of([2, 1]), target_of(top=2))
    assert begins(target) == [90, 90]


def test_while_the_search_is_to_propose_more_no_slot_that_suits_it_is_idle() -> None:
    """A sampler may be working on its next trial. A search that may have no more trials at once leaves the slot."""
    for most, early in ((0, False), (1, True)):
        study = search_of([3, 1, 2, 0.5], max_parallel=most).rows.study
        study = replace(study, sampled=3)
        request = next_request(study, live=1)
        assert (request is None) == early
    assert next_request(replace(study, sampled=4), live=0) is None


def test_a_slot_that_another_study_waits_for_is_not_idle() -> None:
    other = StudySimulation.of(
        make_spec(policy=RUN_ALL, max_trials=12), flat([0.5] * 12), name="other", number=3
    )
    search, target, _ = run(3, search_of([3, 1, 2, 0.5]), target_of(), other)
    assert sources(target) == [3, 1, 2]
    assert min(begins(target)) >= search.record.end_s


def test_a_slot_that_suits_nobody_who_waits_is_idle() -> None:
    """Another study waits for the single large machine. The search's second small machine is idle from 90 s on."""
    small, large = ({"resources": {"gpus": 1, "gpu_types": [kind]}} for kind in ("small", "large"))
    other = StudySimulation.of(
        make_spec(policy=RUN_ALL, max_trials=4, **large), flat([0.5] * 4), name="other", number=3
    )
    search, target = search_of([3, 1, 2], **small), target_of(top=2, **small)
    Simulation(parse_types("small:2,large:1"), [search, target, other]).run()
    assert begins(other) == [0, 90, 180, 270]
    assert begins(target) == [90, 180]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_there_are_never_more_than_wanted_and_the_best_of_the_search_is_among_them(
    policy: str, seed: int
) -> None:
    search, target = run(
        4, search_of(seed=seed, policy=POLICIES[policy], max_trials=30), target_of(eager=0.3)
    )
    early = [begin for begin in begins(target) if begin < search.record.end_s]
    assert len(begins(target)) == 3
    assert 1 <= len(early) <= 2
    best = min(
        (trial for trial in search.rows.trials.values() if trial.best_value is not None),
        key=lambda trial: (trial.best_value, -trial.step, trial.number),
    )
    assert best.number in sources(target)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_begins_once_the_share_is_decided_though_no_slot_is_idle(policy: str) -> None:
    """One worker is never idle before the search's end. A paused trial counts, because it may never be promoted."""

    def ends(eager: float | None) -> tuple[float, float, str]:
        search, target = run(
            1, search_of(policy=POLICIES[policy], max_trials=27), target_of(top=2, eager=eager)
        )
        return min(begins(target)), search.record.end_s, created(target)[0].message

    first, end, said = ends(0.5)
    assert first < end
    assert "of 27 trials are decided" in said
    first, end, _ = ends(None)
    assert first >= end


def test_the_same_studies_give_the_same_logs() -> None:
    def log() -> list[Any]:
        studies = run(4, search_of(seed=3, policy=POLICIES["promotion"], max_trials=30), target_of(eager=0.3))
        return [[(e.number, e.kind, e.message) for e in one.rows.events or ()] for one in studies]

    assert log() == log()


def test_a_search_without_a_sound_result_leaves_nothing_to_take() -> None:
    search, target = search_of([None, None]), target_of(top=2)
    Simulation(machines(2), [search, target]).run()
    assert search.rows.study.state is StudyState.FAILED
    assert target.rows.study.state is StudyState.FAILED
    assert target.rows.study.detail.startswith("study 'search', whose best configurations it takes, failed")


def test_a_limit_on_parallel_trials_holds_for_early_ones_too() -> None:
    _, target = run(3, search_of([3, 1, 2, 0.5]), target_of(max_parallel=1))
    assert begins(target) == [90, 180, 270]


def test_gangs_need_enough_idle_slots_on_one_worker() -> None:
    """Two workers of two slots. The search's fifth trial leaves one slot free on its worker, and two on the other."""
    search, target = run(2, search_of([3, 1, 2, 4, 0.5]), target_of(resources={"gpus": 2}), slots=2)
    assert search.record.end_s == 180
    assert begins(target) == [90, 180, 180]
    assert sources(target)[0] == 1
