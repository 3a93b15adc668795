"""Gangs on slots with a fast interconnect: which ones, on which worker, what is kept for them, and what is learnt."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_placement_contract import device, islands, job

from headrace.v1 import worker_pb2
from headrace_services.scheduler.core.placement import BestFit, Cluster, Request, Reservation, Running, fit
from headrace_services.scheduler.core.placement.joints import Link, choose, cost, joint, kind_of
from headrace_services.scheduler.core.placement.speeds import all_kinds, guessed, kinds_of, preference, run_s
from headrace_services.scheduler.core.records import Slot
from headrace_services.scheduler.session import messages


def worker(number: int, count: int, *sizes: int, taken: tuple[int, ...] = ()) -> list[Slot]:
    """A worker with islands of these sizes, without the slots that are taken."""
    links = islands(count, *sizes)
    return [device(number, n, links=links[n]) for n in range(count) if n not in taken]


def indices(slots: object) -> list[int]:
    return [slot.index for slot in slots]  # type: ignore[attr-defined]


def test_the_numbers_are_those_of_the_contract() -> None:
    said = {name.removeprefix("LINK_KIND_"): number for name, number in worker_pb2.LinkKind.items()}
    assert {"UNSPECIFIED" if link is Link.UNKNOWN else link.name: int(link) for link in Link} == said


def test_a_joint_of_a_later_contract_counts_as_unknown() -> None:
    gpu = worker_pb2.Device(kind=worker_pb2.DEVICE_KIND_GPU, links=[0, 7, 4])  # type: ignore[list-item]
    hello = worker_pb2.Hello(protocol=1, worker="w", incarnation="1", log_dir="/l", devices=[gpu])
    assert messages.greeting(hello).devices[0].links == (Link.UNKNOWN, Link.UNKNOWN, Link.MACHINE)


@pytest.mark.parametrize(
    ("slots", "count", "chosen"),
    [
        (worker(1, 8, 4), 4, [0, 1, 2, 3]),
        (worker(1, 8, 4, taken=(0,)), 4, [4, 5, 6, 7]),
        (worker(1, 8, 4, taken=(0, 5)), 2, [1, 2]),
        (worker(1, 8, 2, taken=(0, 2)), 2, [4, 5]),
        (worker(1, 8, 2, 4, 8, taken=(0, 2, 5)), 2, [6, 7]),
        (worker(1, 8, 1, 2, 4, taken=(0, 2, 4, 6)), 2, [1, 3]),
    ],
    ids=["an island", "a whole one", "of equal ones the first", "a pair", "the best of all", "one node"],
)
def test_a_gang_gets_the_slots_that_are_joined_best(slots: list[Slot], count: int, chosen: list[int]) -> None:
    placement = fit(slots, job(0, count))
    assert placement is not None
    assert indices(placement.slots) == chosen


def test_small_trials_leave_islands_whole() -> None:
    one_broken = worker(1, 8, 4, taken=(5,))
    assert indices(choose(one_broken, 2)) == [4, 6], "the island that is broken already"
    assert indices(choose(one_broken, 1)) == [4]
    share = [*one_broken[:-1], one_broken[-1].less(250, 0)]
    assert indices(fit(share, job(0, milli=250)).slots) == [7], "a share goes where the least is left"  # type: ignore[union-attr]


@settings(max_examples=150, derandomize=True)
@given(data=st.data())
def test_on_trees_no_set_is_joined_better(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from([(2, 4, 8), (4,), (2,), (1, 2, 4), (3, 6), (8,)]))
    free = data.draw(st.sets(st.integers(0, 8), min_size=2))
    count = data.draw(st.integers(1, len(free)))
    slots = [slot for slot in worker(1, 9, *sizes) if slot.index in free]
    chosen = choose(slots, count)
    assert len({slot.index for slot in chosen}) == count
    assert cost(chosen) == min(map(cost, combinations(slots, count)))


@settings(max_examples=100, derandomize=True)
@given(taken=st.sets(st.integers(0, 7)), count=st.integers(1, 8))
def test_where_nothing_is_known_the_first_slots_are_taken(taken: set[int], count: int) -> None:
    slots = [device(1, n) for n in range(8) if n not in taken]
    placement = fit(slots, job(0, count))
    assert (placement is None) == (len(slots) < count)
    assert placement is None or indices(placement.slots) == indices(slots)[:count]


def test_a_worker_with_nvlink_goes_before_the_tightest_fit_and_unknown_ones_before_bad_ones() -> None:
    tight, good, unknown = worker(1, 2, 1), worker(2, 8, 4), [device(3, n) for n in range(8)]
    found = fit([*tight, *good, *unknown], job(0, 2))
    assert found is not None
    assert found.slots[0].worker_id == 2
    found = fit([*tight, *unknown], job(0, 2))
    assert found is not None
    assert found.slots[0].worker_id == 3


def test_speeds_that_were_measured_decide() -> None:
    """A slow device with NVLink against a fast one without it."""
    slow = [device(1, n, model="L4", links=links) for n, links in enumerate(islands(2, 2))]
    fast = [device(2, n, links=links) for n, links in enumerate(islands(2, 1))]
    kinds = kinds_of([*slow, *fast], Request(slots=2))
    assert kinds == {"L4 (NVLink)", "H200 (across NUMA nodes)"}
    speeds = {"L4 (NVLink) x2": (10.0, 30.0), "H200 (across NUMA nodes) x2": (10.0, 20.0)}
    times = run_s(kinds, Request(slots=2), 5, speeds, {})
    assert times == {"L4 (NVLink)": 15.0, "H200 (across NUMA nodes)": 10.0}
    waiting = job(0, 2, preference=preference(times, {}, kinds))
    assert kind_of(fit([*slow, *fast], waiting).slots) == "H200 (across NUMA nodes)"  # type: ignore[union-attr]
    assert kind_of(fit([*slow, *fast], job(0, 2)).slots) == "L4 (NVLink)"  # type: ignore[union-attr]


def test_a_joint_that_was_not_measured_does_not_hide_what_is_known_of_device_types() -> None:
    free = [
        *(device(1, n, model="L4", links=links) for n, links in enumerate(islands(2, 2))),
        *(device(2, n, links=links) for n, links in enumerate(islands(2, 2))),
        *(device(3, n, links=links) for n, links in enumerate(islands(2, 1))),
    ]
    kinds = kinds_of(free, Request(slots=2))
    measured = {"L4 (NVLink)": 15.0, "H200 (NVLink)": 5.0}
    times = guessed(measured, free)
    assert times["H200 (across NUMA nodes)"] == 5.0
    assert preference(measured, {}, kinds) == {}
    ranked = preference(times, {}, kinds)
    assert sorted(ranked, key=ranked.__getitem__) == [
        "H200 (NVLink)",
        "H200 (across NUMA nodes)",
        "L4 (NVLink)",
    ]
    assert guessed({"H200": 1.0}, [device(1, 0)]) == {"H200": 1.0}


def test_a_single_slot_has_no_joint_and_all_ways_of_a_model_have_names() -> None:
    slots = worker(1, 2, 2)
    assert joint(slots[:1]) is Link.UNKNOWN
    assert kinds_of(slots, Request()) == {"H200"}
    assert len(all_kinds(slots)) == len(Link)
    assert all_kinds([device(1, 0)]) == {"H200"}


def test_of_slots_that_are_free_as_soon_the_best_joined_are_kept() -> None:
    slots = worker(1, 8, 4)
    busy = (0, 1, 2, 4, 5, 6, 7)
    running = tuple(
        Running(key=(2, n), grant_id=f"l{n}", worker_id=1, slots=(n,), leaves_in_s=10.0) for n in busy
    )
    devices = tuple(slot.less(1000, 0) if slot.index in busy else slot for slot in slots)
    plan = BestFit().plan(Cluster(devices=devices, running=running), [job(0, 4)])
    assert [reservation.slots for reservation in plan.reservations] == [(0, 1, 2, 3)]
    late = tuple(
        Running(key=run.key, grant_id=run.grant_id, worker_id=1, slots=run.slots, leaves_in_s=99.0)
        if run.slots == (1,)
        else run
        for run in running
    )
    plan = BestFit().plan(Cluster(devices=devices, running=late), [job(0, 4)])
    assert plan.reservations[0].ready_in_s == 10.0, "nobody waits longer for a better joint"
    assert 1 not in plan.reservations[0].slots


def test_a_gang_backfills_only_by_the_time_that_its_own_joint_takes() -> None:
    slots = worker(1, 2, 1)
    kept = [Reservation(key=(2, 0), worker_id=1, slots=(0, 1), since_s=0.0, ready_in_s=10.0)]
    assert fit(slots, job(0, 2, run_s={"H200 (NVLink)": 1.0}), kept) is None
    found = fit(slots, job(0, 2, run_s={"H200 (across NUMA nodes)": 1.0}), kept)
    assert found is not None
    assert found.rule == "backfill"
