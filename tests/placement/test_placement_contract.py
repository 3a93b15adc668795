"""What every placer guarantees, whatever the input: one suite for all of them, over random clusters."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tiers import drawn

from headrace_services.scheduler.core.placement import (
    BestFit,
    Cluster,
    Placer,
    Request,
    Reservation,
    Running,
    Waiting,
)
from headrace_services.scheduler.core.placement.fit import memory_of, suits
from headrace_services.scheduler.core.records import Slot

GIB = 1 << 30
PLACERS: dict[str, Placer] = {
    "best fit": BestFit(),
    "without reservations": BestFit(reserve=False),
    "without backfill": BestFit(backfill=False),
}
MODELS = ("H200", "A100")


def device(worker: int, index: int, *, kind: str = "GPU", model: str = "H200", **changes: object) -> Slot:
    """A device with nobody on it."""
    slot = Slot(
        worker_id=worker,
        index=index,
        kind=kind,
        memory_bytes=80 * GIB,
        labels={},
        worker_name=f"w{worker}",
        incarnation="1",
        log_dir="",
        model=model,
        cores=8.0,
    )
    return replace(slot, **changes)  # type: ignore[arg-type]  # of the fields' own types


def islands(count: int, *sizes: int) -> list[tuple[int, ...]]:
    """The interconnects of a worker's slots: islands of each size, the fastest first; across islands it is the
    machine."""

    def link(one: int, other: int) -> int:
        if one == other:
            return 0
        inside = (place for place, size in enumerate(sizes, 1) if one // size == other // size)
        return next(inside, 4)

    return [tuple(link(one, other) for other in range(count)) for one in range(count)]


def job(number: int, slots: int = 1, milli: int = 1000, **changes: object) -> Waiting:
    """A waiting trial of study 1."""
    waiting = Waiting(key=(1, number), request=Request(slots=slots, milli=milli), group=1)
    return replace(waiting, **changes)  # type: ignore[arg-type]  # of the fields' own types


requests = st.builds(
    Request,
    slots=st.sampled_from([1, 1, 1, 2, 4, 8]),
    gpu=st.sampled_from([True, True, True, False]),
    memory_bytes=st.sampled_from([0, 0, 30 * GIB, 100 * GIB]),
    types=st.sampled_from([(), (), ("h200",), ("A100", "H200")]),
    labels=st.sampled_from([{}, {}, {"zone": "a"}]),
) | st.builds(
    Request,
    milli=st.sampled_from([125, 250, 333, 500, 750]),
    memory_bytes=st.sampled_from([0, 8 * GIB, 40 * GIB]),
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Machines with trials on them."""
    devices: list[Slot] = []
    running: list[Running] = []
    for worker in range(1, draw(st.integers(1, 4)) + 1):
        model, memory = draw(st.sampled_from(MODELS)), draw(st.sampled_from([24, 80, 141])) * GIB
        labels = draw(st.sampled_from([{}, {"zone": "a"}]))
        kind = draw(st.sampled_from(["GPU", "GPU", "GPU", "CPU"]))
        size = draw(st.integers(1, 8))
        island = draw(st.sampled_from([0, 0, 1, 2, 4]))
        for index in range(size):
            links = islands(size, island)[index] if island else ()
            slot = device(
                worker, index, kind=kind, model=model, memory_bytes=memory, labels=labels, links=links
            )
            for milli in draw(st.sampled_from([(), (), (1000,), (500,), (250, 250), (333, 333, 333)])):
                number = len(running)
                running.append(
                    Running(
                        key=(2, number),
                        grant_id=f"l{number}",
                        worker_id=worker,
                        slots=(index,),
                        milli=milli,
                        priority=draw(st.integers(0, 2)),
                        leaves_in_s=draw(st.sampled_from([None, 0.0, 10.0, 100.0])),
                    )
                )
                slot = slot.less(milli, memory * milli // 1000 if milli < 1000 else 0)
            devices.append(slot)
    return Cluster(devices=tuple(devices), running=tuple(running), now_s=1.0)


@st.composite
def waiting_lists(draw: st.DrawFn) -> list[Waiting]:
    """Trials of three studies."""
    return [
        Waiting(
            key=(1, number),
            request=draw(requests),
            run_s={
                kind: draw(st.sampled_from([1.0, 20.0, 200.0]))
                for kind in (*MODELS, "H200 (NVLink)", "A100 (across NUMA nodes)")
                if draw(st.booleans())
            },
            priority=draw(st.sampled_from([0, 0, 0, 1])),
            group=draw(st.integers(1, 3)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]


@pytest.mark.cases(2)
@pytest.mark.parametrize("placer", PLACERS.values(), ids=list(PLACERS))
@settings(max_examples=drawn(first=20, full=60), derandomize=True)
@given(cluster=clusters(), waiting=waiting_lists())
def test_every_plan_keeps_the_promises(placer: Placer, cluster: Cluster, waiting: list[Waiting]) -> None:
    plan = placer.plan(cluster, waiting)
    by_key = {job.key: job for job in waiting}
    free = {(slot.worker_id, slot.index): slot for slot in cluster.devices}
    used: Counter[tuple[int, int]] = Counter()
    memory: Counter[tuple[int, int]] = Counter()
    assert len({placement.key for placement in plan.placements}) == len(plan.placements)
    for placement in plan.placements:
        request = by_key[placement.key].request
        places = {(slot.worker_id, slot.index) for slot in placement.slots}
        assert len(places) == len(placement.slots) == request.slots, "a gang is whole"
        assert len({worker for worker, _ in places}) == 1, "a gang is on one worker"
        assert placement.milli == request.milli
        for place in places:
            assert suits(free[place], request)
            used[place] += placement.milli
            memory[place] += placement.memory_bytes
    for place, slot in free.items():
        assert used[place] <= slot.free_milli, "no device is given out twice"
        assert memory[place] <= slot.memory_left
    kept = [reservation.group for reservation in plan.reservations]
    assert len(set(kept)) == len(kept), "a study has one reservation"
    for reservation in plan.reservations:
        job = by_key[reservation.key]
        assert reservation.key not in {placement.key for placement in plan.placements}
        assert len(reservation.slots) == job.request.slots
        assert all(suits(free[reservation.worker_id, index], job.request) for index in reservation.slots)
    asked = {ask.grant_id: ask for ask in plan.asks}
    for running in cluster.running:
        ask = asked.get(running.grant_id)
        if ask is not None:
            assert running.priority <= by_key[ask.in_favour_of].priority, "nobody is moved for less priority"
            assert ask.at_report == (running.priority < by_key[ask.in_favour_of].priority)
    assert placer.plan(cluster, waiting) == plan, "equal inputs give equal plans"


@pytest.mark.parametrize("placer", PLACERS.values(), ids=list(PLACERS))
@settings(max_examples=drawn(first=15, full=40), derandomize=True)
@given(cluster=clusters(), waiting=waiting_lists())
def test_what_fits_is_placed(placer: Placer, cluster: Cluster, waiting: list[Waiting]) -> None:
    if waiting and (plan := placer.plan(cluster, waiting[:1])).placements == ():
        request = waiting[0].request
        rooms = Counter(
            slot.worker_id
            for slot in cluster.devices
            if suits(slot, request)
            and slot.free_milli >= request.milli
            and slot.memory_left >= memory_of(request, slot)
        )
        assert all(count < request.slots for count in rooms.values()), plan


# --- best fit ------------------------------------------------------------------------------------------


def test_whole_slots_come_from_the_worker_with_the_fewest_left() -> None:
    devices = (*(device(1, n) for n in range(4)), *(device(2, n) for n in range(2)))
    (placement,) = BestFit().plan(Cluster(devices=devices), [job(0, 2)]).placements
    assert {slot.worker_id for slot in placement.slots} == {2}


def test_a_share_goes_to_the_gpu_with_the_least_left_and_pays_its_memory() -> None:
    devices = (device(1, 0), device(1, 1).less(500, 40 * GIB), device(1, 2).less(900, 8 * GIB))
    (placement,) = BestFit().plan(Cluster(devices=devices), [job(0, milli=250)]).placements
    assert [slot.index for slot in placement.slots] == [1]
    assert placement.memory_bytes == 20 * GIB
    hungry = job(1, request=Request(milli=250, memory_bytes=50 * GIB))
    (placement,) = BestFit().plan(Cluster(devices=devices), [hungry]).placements
    assert [slot.index for slot in placement.slots] == [0], "the shared one has too little memory left"


def test_types_memory_labels_and_cores_are_required() -> None:
    small = device(1, 0, model="NVIDIA L4", memory_bytes=24 * GIB)
    large = device(2, 0, model="NVIDIA H200", memory_bytes=141 * GIB, labels={"zone": "a"}, cores=32.0)
    cluster = Cluster(devices=(small, large))
    for request in (
        Request(types=("h200",)),
        Request(memory_bytes=80 * GIB),
        Request(labels={"zone": "a"}),
        Request(cores=16),
    ):
        (placement,) = BestFit().plan(cluster, [job(0, request=request)]).placements
        assert placement.slots[0].worker_id == 2
    assert BestFit().plan(cluster, [job(0, request=Request(types=("A100",)))]).placements == ()


def test_a_cpu_trial_takes_a_cpu_slot_rather_than_a_gpu() -> None:
    devices = (device(1, 0), device(2, 0, kind="CPU", model="cpu"))
    (placement,) = BestFit().plan(Cluster(devices=devices), [job(0, request=Request(gpu=False))]).placements
    assert placement.slots[0].kind == "CPU"


# --- reservations ------------------------------------------------------------------------------------------


def _busy(worker: int, index: int, leaves_in_s: float | None, **changes: object) -> Running:
    running = Running(
        key=(2, index),
        grant_id=f"{worker}-{index}",
        worker_id=worker,
        slots=(index,),
        leaves_in_s=leaves_in_s,
    )
    return replace(running, **changes)  # type: ignore[arg-type]  # of the fields' own types


def _full(worker: int, times: list[float | None]) -> tuple[tuple[Slot, ...], tuple[Running, ...]]:
    devices = tuple(device(worker, n).less(1000, 0) for n in range(len(times)))
    return devices, tuple(_busy(worker, n, time_s) for n, time_s in enumerate(times))


def test_slots_are_kept_where_they_will_be_free_soonest_and_who_is_there_leaves_at_its_rung() -> None:
    first, there = _full(1, [90.0, 10.0])
    second, here = _full(2, [40.0, 30.0])
    plan = BestFit().plan(Cluster(devices=first + second, running=there + here, now_s=5.0), [job(0, 2)])
    (kept,) = plan.reservations
    assert (kept.worker_id, kept.slots, kept.ready_in_s, kept.since_s) == (2, (0, 1), 40.0, 5.0)
    assert [(ask.grant_id, ask.at_report) for ask in plan.asks] == [("2-0", False), ("2-1", False)]


def test_others_get_kept_slots_only_for_work_that_ends_before() -> None:
    devices = (device(1, 0), device(1, 1).less(1000, 0))
    kept = Reservation(key=(1, 0), worker_id=1, slots=(0, 1), since_s=0.0, ready_in_s=60.0)
    cluster = Cluster(devices=devices, running=(_busy(1, 1, 60.0),), reservations=(kept,))
    short, long, unknown = ({"H200": 50.0}, {"H200": 58.0}, {})
    (placement,) = BestFit().plan(cluster, [job(1, run_s=short)]).placements
    assert placement.rule == "backfill"
    assert BestFit().plan(cluster, [job(1, run_s=long)]).placements == (), "58 s and a tenth are too long"
    assert BestFit().plan(cluster, [job(1, run_s=unknown)]).placements == ()
    assert BestFit().plan(cluster, [job(1, run_s=long, priority=1)]).placements, "more priority is not bound"


def test_of_two_reservations_on_the_same_slots_the_older_one_holds() -> None:
    devices = (device(1, 0), device(1, 1))
    older = Reservation(key=(1, 0), worker_id=1, slots=(0, 1), since_s=1.0, group=1)
    younger = Reservation(key=(2, 0), worker_id=1, slots=(0, 1), since_s=2.0, group=2)
    cluster = Cluster(devices=devices, reservations=(older, younger))
    rival = job(0, 2, key=(2, 0), group=2)
    assert BestFit().plan(cluster, [rival]).placements == ()
    assert [p.key for p in BestFit().plan(cluster, [rival, job(0, 2)]).placements] == [(1, 0)]


def test_an_older_reservation_elsewhere_does_not_overtake_on_slots_that_are_kept() -> None:
    devices = (device(1, 0), device(1, 1).less(1000, 0), device(2, 0), device(2, 1))
    older = Reservation(key=(1, 0), worker_id=1, slots=(0, 1), since_s=1.0, ready_in_s=9.0, group=1)
    younger = Reservation(key=(2, 0), worker_id=2, slots=(0, 1), since_s=2.0, ready_in_s=0.0, group=2)
    cluster = Cluster(devices=devices, running=(_busy(1, 1, 9.0),), reservations=(older, younger))
    first, second = job(0, 2), job(0, 2, key=(2, 0), group=2)
    assert [p.key for p in BestFit().plan(cluster, [first, second]).placements] == [(2, 0)]
    urgent = replace(first, priority=1)
    assert [p.key for p in BestFit().plan(cluster, [urgent, second]).placements] == [(1, 0)]


def test_nothing_is_kept_where_one_trials_end_makes_room() -> None:
    devices = tuple(device(1, n).less(1000, 0) for n in range(2))
    running = (Running(key=(2, 0), grant_id="l", worker_id=1, slots=(0, 1), leaves_in_s=5.0),)
    plan = BestFit().plan(Cluster(devices=devices, running=running), [job(0, 2)])
    assert plan.reservations == plan.asks == ()


def test_a_higher_priority_has_the_least_that_is_in_its_way_leave_at_the_next_report() -> None:
    devices, running = _full(1, [10.0, 20.0, 30.0])
    running = (replace(running[0], priority=1), running[1], replace(running[2], priority=2))
    plan = BestFit().plan(Cluster(devices=devices, running=running), [job(0, priority=2)])
    assert [(ask.grant_id, ask.at_report) for ask in plan.asks] == [("1-1", True)]
    assert [kept.slots for kept in plan.reservations] == [(1,)]


def test_nobody_comes_back_to_slots_that_a_higher_priority_is_about_to_get() -> None:
    """A preempted trial that ended soon once took its slot back, until the end of another that left just after it."""
    devices, running = _full(1, [20.0, 35.0])
    urgent = job(0, 2, priority=10)
    (kept,) = BestFit().plan(Cluster(devices=devices, running=running), [urgent]).reservations
    assert kept.ready_in_s == 0.0, "they leave at their next report"
    left = (device(1, 0), devices[1])
    cluster = Cluster(devices=left, running=running[1:], reservations=(kept,))
    preempted = job(0, key=(2, 0), run_s={"H200": 1.0})
    assert BestFit().plan(cluster, [urgent, preempted]).placements == ()


def test_no_worker_could_ever_serve_it() -> None:
    devices, running = _full(1, [10.0, 20.0])
    plan = BestFit().plan(Cluster(devices=devices, running=running), [job(0, 3)])
    assert plan.reservations == plan.asks == ()
