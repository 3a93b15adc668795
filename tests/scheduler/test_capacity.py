"""How many trials share a process, as computed from a profile without a database."""

import pytest

from headrace.spec.fuse import Fuse
from headrace_services.scheduler.core.capacity import ENOUGH, START, FirstStep, Profile, TurnCost, capacity

AUTO = Fuse.model_validate("auto")
GIB = 2**30


def profile(times: dict[int, float], memory: dict[int, int] | None = None, turns: int = ENOUGH) -> Profile:
    """A profile with these turn times in seconds, by number of members."""
    found = Profile(device="cpu", key="[]")
    for members, time_s in times.items():
        held = (memory or {}).get(members, 0)
        cost = TurnCost(members=members, turns=turns, time_s=turns * time_s, memory_bytes=held)
        found = found.learn(cost)
    return found


@pytest.mark.parametrize(
    ("times", "trials", "says"),
    [
        ({}, START, "nothing is measured yet"),
        ({1: 1.0}, 2, "more may do more"),
        ({2: 1.0}, 4, "more may do more"),
        ({2: 1.0, 4: 1.0}, 8, "more may do more"),
        ({2: 1.0, 4: 1.95}, 2, "2 do 2 steps a second, and 4 do 2.05: more gain little"),
        ({2: 1.0, 3: 1.2, 5: 1.4}, 10, "more may do more"),
        ({2: 1.0, 4: 1.0, 8: 1.0, 16: 2.1}, 8, "8 do 8 steps a second, and 16 do 7.62: more gain little"),
        ({1: 1.0, 2: 1.0, 4: 1.1, 8: 2.1}, 4, "more gain little"),
    ],
)
def test_auto_doubles_while_that_pays_and_then_takes_the_knee(
    times: dict[int, float], trials: int, says: str
) -> None:
    found = capacity(AUTO, profile(times), 0)
    assert found.trials == trials
    assert says in found.why


def test_too_few_turns_are_no_measurement_and_the_quickest_counts() -> None:
    assert capacity(AUTO, profile({2: 1.0}, turns=2), 0).trials == START
    slow = profile({2: 9.0}, turns=1)
    quick = slow.learn(TurnCost(members=2, turns=2, time_s=2.0)).learn(
        TurnCost(members=4, turns=9, time_s=36.0)
    )
    assert quick.steady[2].time_s == 1.0, "the first turn compiles"
    assert capacity(AUTO, quick, 0).trials == 4, "nine turns that are slow may be so by chance"
    slow = quick.learn(TurnCost(members=4, turns=1, time_s=4.0))
    assert capacity(AUTO, slow, 0).trials == 2


def test_what_is_known_well_enough_is_not_written_again() -> None:
    known = profile({4: 1.0}, turns=ENOUGH)
    assert known.learn(TurnCost(members=4, turns=1, time_s=0.1)) is known
    assert known.learn(TurnCost(members=2, turns=1, time_s=0.0)) is known


def test_the_least_first_step_of_the_most_members_is_kept() -> None:
    def after(known: Profile, members: int, first_s: float) -> Profile:
        cost = TurnCost(members=members, turns=1, time_s=0.0, first_step_s=first_s, later_step_s=0.1)
        return known.learn(cost)

    four = after(Profile(device="H100", key="[]"), 4, 3.0)
    assert four.first == FirstStep(members=4, time_s=3.0, later_s=0.1)
    assert four.steady == {}, "no turn was measured"
    assert after(four, 2, 1.0) is four
    assert after(four, 4, 5.0) is four
    assert after(four, 4, 2.0).first == FirstStep(members=4, time_s=2.0, later_s=0.1)
    assert after(four, 8, 9.0).first == FirstStep(members=8, time_s=9.0, later_s=0.1)
    assert four.learn(TurnCost(members=8, turns=1, time_s=1.0, first_step_s=9.0)).first == four.first


def test_auto_holds_no_more_than_memory_allows() -> None:
    rising = {2: 1.0, 4: 1.0, 8: 1.0}
    held = {2: 3 * GIB, 4: 4 * GIB, 8: 6 * GIB}  # 2 GiB, plus half a GiB per member
    found = capacity(AUTO, profile(rising, held), 10 * GIB)
    assert (found.trials, found.seats, found.member_bytes) == (14, 1024, GIB // 2)
    assert "as many as fit 10 GiB" in found.why
    assert capacity(AUTO, profile(rising, held), 0).trials == 16, "the device's memory is not known"
    lone = profile({2: 1.0}, {2: 4 * GIB})
    assert capacity(AUTO, lone, 7 * GIB).trials == 3, "of one measurement each has its part of it all"
    assert capacity(AUTO, lone, GIB).trials == 1


def test_a_process_out_of_memory_halves_the_number_for_good() -> None:
    lost = profile({2: 1.0, 4: 1.0, 8: 1.0}).halved(12)
    assert capacity(AUTO, lost, 0).trials == 6
    assert capacity(AUTO, lost, 0).seats == 6
    assert capacity(AUTO, lost.halved(12), 0).trials == 6, "each member tells of it"
    assert capacity(AUTO, lost.halved(16), 0).trials == 6
    assert capacity(Fuse(most=16), lost, 0).trials == 6
    assert capacity(Fuse(most=4), lost, 0).trials == 4
    assert capacity(Fuse(most=16), lost.halved(3), 0).trials == 1
    assert "ran out of memory" in capacity(Fuse(most=16), lost, 0).why


def test_a_number_that_the_study_gives_is_taken_as_it_is() -> None:
    falling = profile({2: 1.0, 4: 9.0}, {2: GIB, 4: 2 * GIB})
    found = capacity(Fuse(most=16), falling, GIB)
    assert (found.trials, found.seats) == (16, 16)


def test_a_bound_beside_auto_holds() -> None:
    found = capacity(Fuse(most=3, auto=True), profile({2: 1.0}), 0)
    assert (found.trials, found.seats) == (3, 3)
    assert "at most 3 as the study says" in found.why


def test_fresh_turns_are_compared_with_each_other_and_the_larger_number_is_taken() -> None:
    """A study whose trials come and go at each turn has no steady turns, but its last trials do."""
    found = profile({1: 0.1, 2: 0.2})
    assert capacity(AUTO, found, 0).trials == 1, "by steady turns more gain little"
    for members, time_s in ((2, 1.0), (4, 1.1)):
        fresh = TurnCost(members=members, turns=ENOUGH, time_s=ENOUGH * time_s, fresh=True)
        found = found.learn(fresh)
    assert capacity(AUTO, found, 0).trials == 8
    slow = found.learn(TurnCost(members=8, turns=ENOUGH, time_s=ENOUGH * 2.2, fresh=True))
    assert capacity(AUTO, slow, 0).trials == 4
