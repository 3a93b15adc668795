"""Which seats are filled, case by case."""

from dataclasses import replace

from headrace.launch.decision import FreeSlots, Kind, Need, decide
from headrace.launch.engine import Member, Stage

GPUS = Kind(slots=4, on_gpu=True, labels={"zone": "eu"})
CPUS = Kind(slots=2, on_gpu=False)


def need(count: int, slots: int = 1, **other: object) -> Need:
    return Need(count=count, slots=slots, on_gpu=True, **other)  # type: ignore[arg-type]


def member(seat: int, stage: Stage = Stage.PENDING, *, id: str = "", worker: str = "") -> Member:  # noqa: A002
    return Member(seat=seat, id=id or str(100 + seat), stage=stage, worker=worker or f"w-{seat}")


def seats(needs: list[Need], *, free: tuple[FreeSlots, ...] = (), members: tuple[Member, ...] = (),
          connected: frozenset[str] = frozenset(), kind: Kind = GPUS, most: int = 8) -> tuple[int, ...]:  # fmt: skip
    return decide(needs, free, members, connected, kind=kind, most=most).submit


def test_no_trial_waits_and_nothing_is_requested() -> None:
    assert seats([]) == ()


def test_whole_workers_for_the_trials_that_wait() -> None:
    assert seats([need(4)]) == (0,)
    assert seats([need(5)]) == (0, 1)
    assert seats([need(3, slots=3)]) == (0, 1, 2)


def test_never_more_than_the_seats() -> None:
    found = decide([need(100)], (), (), (), kind=GPUS, most=3)
    assert found.submit == (0, 1, 2)
    assert found.beyond == 100 - 12


def test_free_slots_come_first() -> None:
    free = FreeSlots(free=(1000, 1000), on_gpu=True, labels={"zone": "eu"})
    assert seats([need(2)], free=(free,)) == ()
    assert seats([need(3)], free=(free,)) == (0,)
    assert seats([need(1, slots=3)], free=(free,)) == (0,)


def test_free_slots_of_another_kind_or_label_do_not_count() -> None:
    wrong = (
        FreeSlots(free=(1000,) * 8, on_gpu=False, labels={"zone": "eu"}),
        FreeSlots(free=(1000,) * 8, on_gpu=True, labels={"zone": "us"}),
    )
    assert seats([need(1, labels={"zone": "eu"})], free=wrong) == (0,)
    assert seats([need(1)], free=wrong) == ()


def test_workers_that_are_about_to_connect_count_as_free() -> None:
    assert seats([need(4)], members=(member(0),)) == ()
    assert seats([need(5)], members=(member(0),)) == (1,)
    assert seats([need(5)], members=(member(0, Stage.RUNNING),)) == (1,)


def test_a_connected_worker_counts_by_its_free_slots_alone() -> None:
    busy = member(0, Stage.RUNNING)
    assert seats([need(1)], members=(busy,), connected=frozenset({"w-0"})) == (1,)


def test_the_free_seats_are_filled_lowest_first() -> None:
    members = (member(0), member(2, Stage.RUNNING))
    assert seats([need(16)], members=members, most=4) == (1, 3)


def test_seats_beyond_a_smaller_maximum_are_left_alone() -> None:
    members = tuple(member(seat, Stage.RUNNING) for seat in range(6))
    assert seats([need(100)], members=members, most=3) == ()


def test_members_on_seats_beyond_a_smaller_maximum_count_too() -> None:
    members = tuple(member(seat, Stage.RUNNING) for seat in range(2, 8))
    assert seats([need(100)], members=members, most=2) == ()
    assert seats([need(100)], members=members, most=7) == (0,)


def test_a_seat_that_rests_is_not_filled_and_no_other_is_in_its_place() -> None:
    assert decide([need(4)], (), (), (), kind=GPUS, most=8, resting={0}).submit == ()
    assert decide([need(8)], (), (), (), kind=GPUS, most=8, resting={0}).submit == (1,)
    assert decide([need(8)], (), (member(0),), (), kind=GPUS, most=8, resting={0, 9}).submit == (1,)


def test_a_study_may_require_workers_that_are_ephemeral() -> None:
    assert seats([need(1, labels={"headrace/ephemeral": "yes"})]) == (0,)
    assert seats([need(1, labels={"headrace/ephemeral": "no"})]) == ()


def test_a_member_whose_withdrawal_was_interrupted_is_given_to_the_engine_again() -> None:
    held = replace(member(0, id="100"), held=True)
    assert decide([need(4)], (), (held,), (), kind=GPUS, most=8).withdraw == (held,)
    other = member(0, id="101")
    assert decide([need(4)], (), (held, other), (), kind=GPUS, most=8).withdraw == (held,)


def test_trials_that_no_worker_of_the_launch_can_run_request_none() -> None:
    for unsuited in (
        need(1, slots=5),
        need(1, labels={"zone": "us"}),
        Need(count=1, slots=1, on_gpu=False),
    ):
        found = decide([unsuited], (), (), (), kind=GPUS, most=8)
        assert (found.submit, found.unsuited, found.waiting) == ((), (unsuited,), 0)


def test_shares_of_a_gpu_are_packed() -> None:
    assert seats([need(16, milli=250)]) == (0,)
    assert seats([need(17, milli=250)]) == (0, 1)
    half = FreeSlots(free=(500, 1000), on_gpu=True)
    assert seats([need(3, milli=400)], free=(half,)) == ()
    assert seats([need(4, milli=400)], free=(half,)) == (0,)


def test_cpu_slots() -> None:
    assert seats([Need(count=5, slots=1)], kind=CPUS) == (0, 1, 2)
    assert seats([Need(count=2, slots=2)], kind=CPUS) == (0, 1)


def test_a_second_request_for_a_seat_is_withdrawn_and_the_first_stays() -> None:
    first, second = member(0, id="100"), member(0, id="101")
    found = decide([need(4)], (), (first, second), (), kind=GPUS, most=8)
    assert (found.withdraw, found.submit) == ((second,), ())
    runs = member(0, Stage.RUNNING, id="101")
    found = decide([need(4)], (), (first, runs), (), kind=GPUS, most=8)
    assert found.withdraw == (first,)


def test_nothing_that_runs_is_ever_withdrawn() -> None:
    both = (member(0, Stage.RUNNING, id="100"), member(0, Stage.RUNNING, id="101"))
    assert decide([], (), both, (), kind=GPUS, most=8).withdraw == ()


def test_the_time_does_not_grow_with_the_number_of_trials() -> None:
    found = decide([need(10**9), need(10**9, slots=4)], (), (), (), kind=GPUS, most=200)
    assert len(found.submit) == 200
