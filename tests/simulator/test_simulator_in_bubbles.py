"""Ephemeral slots on virtual time: who has them, who leaves them, and how their seconds count.

A stage gives trials a quarter of its time: a step of 10 s takes 40 s there.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from simulated_studies import flat, make_spec

from headrace_services.scheduler.core import placing, sharing
from headrace_services.scheduler.core.inputs import PlaceNow, ReportArrived
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.placement import Placement, Reservation, fit
from headrace_services.scheduler.core.records import Checkpoint, Event, Trial
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.simulator.cluster import GIB, Machine
from headrace_services.scheduler.simulator.costs import Costs
from headrace_services.scheduler.simulator.cycle import cycle
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

GPU = {"gpus": 1, "gpu_memory_bytes": 16 * GIB}
PROGRAM = {"callable": "train:train", "working_dir": "/tmp"}
VALUES = [0.9, 0.1, 0.5, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6]
RUN_ALL = {"kind": "run_all"}


def own(slots: int, number: int = 1) -> Machine:
    return Machine(id=number, name=f"own-{number}", model="H200", slots=slots)


def stages(slots: int, number: int = 2, memory_bytes: int = 20 * GIB) -> Machine:
    return Machine(
        id=number,
        name=f"beside-{number}",
        model="H200",
        slots=slots,
        owner="gpt",
        duty=0.25,
        memory_bytes=memory_bytes,
    )


def study(
    number: int = 1, *, costs: Costs | None = None, step_s: float = 10.0, **changes: Any
) -> StudySimulation:
    fields = {"resources": GPU, "bubbles": True, "template": PROGRAM, **changes}
    spec = make_spec(**fields)
    values = [VALUES[n % len(VALUES)] for n in range(spec.max_trials)]
    curves = flat(values, steps=spec.max_steps, step_s=step_s)
    return StudySimulation.of(
        spec,
        curves,
        costs=costs or Costs(write_s=0.1, read_s=0.1),
        name=f"study-{number}",
        number=number,
        log=True,
    )


def run(machines: Iterable[Machine], *studies: StudySimulation) -> None:
    Simulation(tuple(machines), studies).run()
    for one in studies:
        assert one.rows.study.state is StudyState.COMPLETED, one.rows.study.detail


def events(one: StudySimulation, kind: str) -> list[Event]:
    return [event for event in one.rows.events or () if event.kind == kind]


def said(one: StudySimulation, text: str) -> list[Event]:
    return [event for event in one.rows.events or () if text in event.message]


def results(one: StudySimulation) -> dict[int, tuple[object, int, object]]:
    return {number: (trial.reason, trial.step, trial.value) for number, trial in one.rows.trials.items()}


def test_a_study_whose_only_capacity_is_bubbles_finishes_with_the_same_results() -> None:
    beside, apart = study(), study()
    run([stages(2)], beside)
    run([own(2)], apart)
    assert results(beside) == results(apart)
    assert all(trial.bubbles for trial in beside.rows.trials.values())
    assert {place for trial in beside.rows.trials.values() for place in trial.bubbles} == {
        "job gpt, stage 0",
        "job gpt, stage 1",
    }
    assert said(beside, "placed (bubbles): in bubbles of job gpt, stage 1")
    assert beside.record.end_s == pytest.approx(4 * apart.record.end_s, rel=0.05)


def test_a_study_that_does_not_allow_it_stays_out() -> None:
    one = study(bubbles=False)
    run([own(1), stages(4)], one)
    assert {stay.worker for stay in one.record.stays} == {1}
    assert not any(trial.bubbles for trial in one.rows.trials.values())


def test_low_rungs_run_in_bubbles_and_finalists_on_slots_of_their_own() -> None:
    one = study(max_trials=18)
    run([own(1), stages(4)], one)
    last = [stay for stay in one.record.stays if stay.to_step == 9]
    assert last
    assert {stay.worker for stay in last} == {1}
    assert {stay.worker for stay in one.record.stays if stay.to_step < 9} == {1, 2}


def test_a_finalist_that_waits_keeps_nobody_else_out_of_bubbles() -> None:
    """Another study holds the only ordinary slot for a long time."""
    other = study(1, bubbles=False, policy=RUN_ALL, max_trials=1, max_steps=200)
    one = study(2, max_trials=18)
    run([own(1), stages(2)], other, one)
    done = [stay for stay in one.record.stays if stay.end_s < other.record.end_s]
    assert len(done) >= 18
    assert {stay.worker for stay in done} == {2}
    assert {stay.worker for stay in one.record.stays if stay.to_step == 9} == {1}


def test_a_member_moves_at_its_rung_once_a_slot_of_its_own_is_free() -> None:
    other = study(1, bubbles=False, policy=RUN_ALL, max_trials=1, max_steps=5)
    one = study(
        2, policy={"kind": "median", "rungs": [2, 4, 6, 8], "min_peers": 9}, max_trials=1, max_steps=8
    )
    run([own(1), stages(1)], other, one)
    [bubbles, alone] = one.record.stays
    assert (bubbles.worker, bubbles.to_step) == (2, 2), (
        "at its first rung, after 80 s; the slot is free since 50 s"
    )
    assert (alone.worker, alone.to_step) == (1, 8)
    assert said(one, "it leaves the bubbles of job gpt, stage 0: a slot of its own is free")


def test_only_as_many_leave_as_there_is_room_for() -> None:
    """Three trials reach their rungs in one cycle, and one ordinary slot is free."""
    policy = {"kind": "median", "rungs": [2, 4, 6, 8], "min_peers": 9}
    one = study(policy=policy, max_trials=3, max_steps=8)
    simulation = Simulation((stages(3),), [one])
    simulation._step(one, PlaceNow())
    simulation.cluster.add(own(1))
    reports = [
        ReportArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=1,
            sequence=1,
            step=2,
            metrics={"loss": 0.5},
            checkpoint=Checkpoint(uri=f"sim://{lease.number}", step=2),
            train_time_s=80.0,
        )
        for lease in one.rows.leases.values()
    ]
    cycle(one.rows, {1: one.rows}, simulation.cluster, reports, 80.0)
    assert sorted(lease.owner_stage == "" for lease in one.rows.leases.values()) == [False, False, True]
    assert len(events(one, "trial_moved")) == 3 + 2, "one was paused and resumed"


def test_a_bundle_has_as_many_seats_as_fit_the_memory_of_its_stage() -> None:
    """A full bundle of 8 needs 16 GiB, and the stage has 5."""
    one = study(fuse={"most": 8}, policy={"kind": "asha", "eta": 3, "rungs": [3, 9]}, max_trials=12)
    run([stages(1, memory_bytes=5 * GIB)], one)
    assert said(one, "seat 2 of 2 in bundle")
    assert not said(one, "seat 3")
    larger = study(fuse={"most": 8}, policy={"kind": "asha", "eta": 3, "rungs": [3, 9]}, max_trials=12)
    run([stages(1)], larger)
    assert said(larger, "seat 8 of 8 in bundle")


def test_a_stage_without_room_for_one_member_gets_none() -> None:
    one = study(fuse={"most": 8})
    run([own(1), stages(1, memory_bytes=1 * GIB)], one)
    assert {stay.worker for stay in one.record.stays} == {1}


@pytest.mark.parametrize(("gib", "workers"), [(5, {1}), (10, {1, 2})])
def test_under_auto_a_stage_needs_room_for_half_of_the_first_two(gib: int, workers: set[int]) -> None:
    """`resources` requests what the first bundle needs, which has two trials: 16 GiB here."""
    one = study(fuse="auto", policy={"kind": "asha", "eta": 3, "rungs": [3, 9]}, max_trials=12)
    run([own(1), stages(1, memory_bytes=gib * GIB)], one)
    assert {stay.worker for stay in one.record.stays} == workers


def test_seats_of_its_own_go_before_bubbles_and_members_move_to_them() -> None:
    one = study(fuse={"most": 4}, policy={"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}, max_trials=18)
    run([own(1), stages(1)], one)
    first = [stay for stay in one.record.stays if stay.start_s == 0]
    assert [stay.worker for stay in first].count(1) == 4
    assert [stay.worker for stay in first].count(2) == 4
    assert {stay.worker for stay in one.record.stays if stay.to_step == 9} == {1}


# --- seconds in bubbles, counted apart ----------------------------------------------------------------


def test_no_speed_is_learnt_in_bubbles() -> None:
    one = study()
    run([own(1), stages(2)], one)
    [(kind, (steps, seconds))] = one.rows.study.standing.speeds.items()
    assert (kind, seconds / steps) == ("H200", pytest.approx(10.0))
    for trial in one.rows.trials.values():
        assert all(took / count == pytest.approx(10.0) for count, took in trial.speeds.values())
    assert one.rows.study.standing.quantum_s == pytest.approx(10.0 * 9 / 3)


def test_no_pause_is_priced_by_seconds_in_bubbles() -> None:
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "price_pauses": True}
    one = study(policy=policy, costs=Costs(write_s=1.0, read_s=1.0, size_bytes=7))
    run([own(1), stages(2)], one)
    costs = [event.detail["result"]["cost"] for event in events(one, "rung_recorded")]  # type: ignore[index]
    assert {cost.get("step_s") for cost in costs} == {None, 10.0}
    assert all("write_s" not in cost for cost in costs if "step_s" not in cost)
    assert {trial.read_s for trial in one.rows.trials.values()} <= {None, 1.0}


def test_a_restore_in_bubbles_is_not_measured() -> None:
    one = study(costs=Costs(write_s=1.0, read_s=1.0))
    run([stages(2)], one)
    assert {trial.read_s for trial in one.rows.trials.values()} == {None}
    assert one.record.resumes > 0


def test_fair_shares_are_charged_for_slots_of_its_own_alone() -> None:
    """One of two studies has two stages as well. The ordinary slots are still shared half and half."""
    both = [
        study(n, bubbles=n == 1, policy={"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}, max_trials=60)
        for n in (1, 2)
    ]
    simulation = Simulation((own(2), stages(2)), both)
    used: list[float] = []
    simulation._at(400.0, (0, 0), lambda: used.extend(_gpu_s(one, 400.0) for one in both), matters=False)
    simulation.run()
    assert used[0] == pytest.approx(used[1], rel=0.2)
    usage = both[0].rows.study.standing.usage
    in_bubbles = sum(stay.end_s - stay.start_s for stay in both[0].record.stays if stay.worker == 2)
    alone = sum(stay.end_s - stay.start_s for stay in both[0].record.stays if stay.worker == 1)
    assert usage.bubble_s == pytest.approx(in_bubbles)
    assert usage.gpu_s == pytest.approx(alone)
    assert (usage.gpu_milli, usage.bubble_slots) == (0, 0)


def _gpu_s(one: StudySimulation, now_s: float) -> float:
    return one.rows.study.standing.usage.settled(now_s).gpu_s


def gang(number: int, **changes: Any) -> StudySimulation:
    asked = {"gpus": 2, "gpu_memory_bytes": 16 * GIB}
    return study(number, bubbles=False, resources=asked, policy=RUN_ALL, max_trials=2, **changes)


def test_no_slot_in_bubbles_is_kept_for_anybody_and_nobody_is_asked_to_leave_one() -> None:
    """A gang of two waits for two GPUs of one worker; the stages would be two of one worker too."""
    small = study(1, policy={"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}, max_trials=40)
    large = gang(2, priority=1, max_steps=9)
    run([own(2), stages(2)], small, large)
    assert all("own-1" in event.message for event in events(large, "slots_reserved"))
    assert {stay.worker for stay in large.record.stays} == {1}
    for event in events(small, "trial_preempted"):
        before = [e for e in events(small, "trial_moved") if e.number == event.number]
        assert "beside-2" not in before[-1].message


def test_a_run_of_little_priority_in_bubbles_makes_nobody_keep_slots() -> None:
    """The trial of the first study blocks nobody. That of the third one waits for its turn behind an equal."""
    low = {"kind": "median", "rungs": [20, 30], "min_peers": 9}
    small = study(1, priority=-5, policy=low, max_trials=1, max_steps=30)
    busy = study(2, bubbles=False, policy=RUN_ALL, max_trials=1, max_steps=20)
    waits = study(3, bubbles=False, policy=RUN_ALL, max_trials=1, max_steps=3)
    run([own(1), stages(1)], busy, small, waits)
    assert small.record.stays[0].worker == 2
    assert not events(waits, "slots_reserved")


def test_what_a_cycle_gave_out_in_bubbles_is_in_nobodys_way_either() -> None:
    """The cycle's grants are not in the rows yet."""
    one = study(max_trials=2)
    simulation = Simulation((stages(1),), [one])
    state = CycleState(one.rows.at(0.0, simulation.cluster), one.rows.fold)
    [slot] = stages(1).devices()
    state.offer([slot])
    trial = Trial(study_id=1, number=0, params={"x": 0.5}, milestone=1)
    state.load(trials=[trial])
    placing._launch(
        state, trial, Placement(key=(1, 0), slots=(slot,), milli=1000, memory_bytes=0, rule="bubbles"), None
    )
    assert state.changes.granted
    assert sharing.just_granted(state) == ()


def test_a_stage_of_an_unmeasured_model_does_not_hide_what_is_known_of_others() -> None:
    one = study()
    state = CycleState(one.rows.study, one.rows.fold)
    speeds = {"H200": (10.0, 10.0), "H100": (10.0, 30.0)}
    state.stand(speeds=speeds)
    slower = replace(own(1, number=3), model="H100", name="slower")
    beside = replace(stages(1), model="A100")
    state.offer([*own(1).devices(), *slower.devices(), *beside.devices()])
    waiting = sharing.waiting_for(state, Trial(study_id=1, number=0, params={"x": 0.5}, milestone=1), 1)
    assert waiting.preference == {"H200": 0.0, "H100": 1.0}


def test_two_studies_share_stages_by_what_each_has_had_of_them() -> None:
    """There is nothing else, so everything by which other slots are shared is equal. A third study does not use
    stages."""
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}
    both = [study(n, policy=policy, max_trials=40) for n in (1, 2)]
    third = study(3, bubbles=False, max_trials=3)
    simulation = Simulation((own(1), stages(3)), [*both, third])
    had: list[float] = []
    at_s = 600.0
    simulation._at(at_s, (0, 0), lambda: had.extend(_bubble_s(one, at_s) for one in both), matters=False)
    simulation.run()
    assert sum(had) == pytest.approx(3 * at_s, rel=0.02), "no stage is idle"
    assert had[0] == pytest.approx(had[1], rel=0.2)


def test_bundles_in_bubbles_make_room_for_others_too() -> None:
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}
    first, second = (study(n, policy=policy, max_trials=60, fuse={"most": 2}) for n in (1, 2))
    simulation = Simulation((stages(2),), [first, second])
    had: list[float] = []
    at_s = 800.0
    simulation._at(
        at_s, (0, 0), lambda: had.extend(_bubble_s(one, at_s) for one in (first, second)), matters=False
    )
    simulation.run()
    assert had[0] == pytest.approx(had[1], rel=0.3)


def _bubble_s(one: StudySimulation, now_s: float) -> float:
    return one.rows.study.standing.usage.settled(now_s).bubble_s


def test_backfill_goes_by_what_was_measured_outside_of_bubbles() -> None:
    """Two steps end within 20 s on a slot that is kept for another trial from 25 s on. In bubbles they take 80 s."""
    one = study()
    run([own(1), stages(2)], one)
    state = CycleState(one.rows.study, one.rows.fold)
    state.offer([*own(1).devices(), *stages(2).devices()])
    trial = Trial(study_id=1, number=99, params={"x": 0.5}, milestone=2)
    waiting = sharing.waiting_for(state, trial, 2)
    assert waiting.run_s == {"H200": pytest.approx(20.0)}
    kept = Reservation(key=(9, 9), worker_id=1, slots=(0,), since_s=0.0, ready_in_s=25.0)
    found = fit(state.free, waiting, [kept])
    assert found is not None
    assert (found.rule, found.slots[0].worker_id) == ("backfill", 1)
