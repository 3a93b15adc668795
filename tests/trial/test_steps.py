"""Which steps may be reported, and the message for a user who counts in another unit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.steps import refusal

EVEN = tuple(range(10, 101, 10))
GEOMETRIC = (1, 3, 9, 27, 81, 243, 729, 1000)
TURNS = "A step is one turn of t.steps(), and this is turn 1: leave step= out to count turns"
FROM_ONE = "Count steps from 1: report the number of steps done so far."
WHERE = "or give the study rungs at steps that you report, such as"


@pytest.mark.parametrize(
    ("step", "since", "rungs"),
    [
        (1, 0, (1, 3, 9)),
        (2, 1, (1, 3, 9)),  # between two rungs
        (3, 3, (1, 3, 9)),  # the same step again
        (2, 5, (1, 3, 9)),  # a lower one
        (9, 0, (9,)),
        (9, 0, ()),
        (6, 5, (1, 3, 9)),  # a trial that resumes between two rungs
        (3, 0, (3, 9)),  # a later bracket
    ],
)
def test_a_step_up_to_the_next_rung_is_taken(step: int, since: int, rungs: tuple[int, ...]) -> None:
    assert refusal(step, since=since, rungs=rungs, max_steps=9) is None


@pytest.mark.parametrize(
    ("step", "rungs", "turn", "message", "remedy"),
    [
        (
            100,
            (1, 3, 9),
            1,
            "is past the full budget of 9 steps",
            f"{TURNS}. To count 100 steps a turn instead, give the study `steps: 900` and `rungs: [100, 300, 900]`.",
        ),
        (
            100,
            (),
            1,
            "is past the full budget of 9 steps",
            f"{TURNS}. To count 100 steps a turn instead, give the run steps=900.",
        ),
        (
            10,
            (1, 3, 9),
            None,
            "is past the full budget of 9 steps",
            "Count in the unit of the study's `steps`, or give the study `steps` and rungs in your unit.",
        ),
        (
            100,
            (),
            None,
            "is past the full budget of 9 steps",
            "Give the run its budget in the unit that you report, such as steps=900 for 9 reports 100 steps apart.",
        ),
        (
            100,
            GEOMETRIC,
            1,
            "jumps over the rungs at 1, 3, 9, 27, 81",
            f"{TURNS}, {WHERE} `rungs: [100, 300, 900, 1000]`.",
        ),
        (
            100,
            GEOMETRIC,
            None,
            "jumps over the rungs at 1, 3, 9, 27, 81",
            f"Report at every rung, {WHERE} `rungs: [100, 300, 900, 1000]`.",
        ),
        (
            2,
            (1, 3, 9),
            None,
            "jumps over the rung at 1",
            "Report at every rung, or give the study rungs at steps that you report.",
        ),
        (
            25,
            EVEN,
            None,
            "jumps over the rungs at 10, 20",
            f"Report at every rung, {WHERE} `interval: 25`.",
        ),
        (0, (1, 3, 9), None, "is before the first step", FROM_ONE),
        (0, (), 1, "is before the first step", FROM_ONE),
        (-1, (1, 3, 9), None, "is negative", FROM_ONE),
    ],
)
def test_what_is_refused_comes_with_a_remedy(
    step: int, rungs: tuple[int, ...], turn: int | None, message: str, remedy: str
) -> None:
    found = refusal(step, since=0, rungs=rungs, max_steps=rungs[-1] if rungs else 9, turn=turn)
    assert found is not None
    assert (found.message, found.remedy) == (message, remedy)
    assert str(found) == f"step {step} {message}. {remedy}"


def test_a_long_ladder_is_cut_short() -> None:
    found = refusal(100, since=0, rungs=range(1, 201), max_steps=200)
    assert found is not None
    assert found.message == "jumps over the rungs at 1, 2, 3, 4, 5, 6, …, 99"


def test_a_late_report_past_the_budget_of_a_run_by_hand_gets_no_example() -> None:
    found = refusal(12, since=8, rungs=(), max_steps=9)
    assert found is not None
    assert found.remedy == "Give the run its budget in the unit that you report."


@given(data=st.data())
def test_suggested_rungs_admit_a_script_that_continues_as_it_reports(data: st.DataObject) -> None:
    budget = data.draw(st.integers(2, 100), "budget")
    own = sorted(data.draw(st.sets(st.integers(1, budget - 1), max_size=6), "rungs") | {budget})
    each = data.draw(st.sampled_from([0, 0, 2, 5, 10]), "interval")
    rungs = [*range(each, budget, each), budget] if each else own
    gap, first = data.draw(st.integers(1, 20), "gap"), data.draw(st.integers(1, 20), "first")
    before = data.draw(st.sets(st.integers(1, first), max_size=3), "reported before")
    reported = [*sorted(before - {first}), *range(first, budget + 1, gap)]
    found = next(filter(None, _refusals(reported, rungs)), None)
    if found is None:
        return
    such = re.search(r"such as `(rungs|interval): \[?([\d, …]+)", found.remedy)
    if such is None or "…" in such[2]:
        return
    levels = [int(level) for level in such[2].split(", ")]
    ladder = levels if such[1] == "rungs" else [*range(levels[0], budget, levels[0]), budget]
    so_far = reported[: reported.index(found.step) + 1]
    goes_on = range(so_far[-1], budget + 1, so_far[-1] - so_far[-2] if len(so_far) > 1 else so_far[-1])
    assert not any(_refusals([*so_far, *goes_on], ladder)), found
    assert goes_on[-1] == budget


def _refusals(reported: list[int], rungs: list[int]) -> list[object]:
    since = [0, *reported]
    return [
        refusal(step, since=max(since[: place + 1]), rungs=rungs, max_steps=rungs[-1])
        for place, step in enumerate(reported)
    ]


@pytest.mark.parametrize(
    ("step", "since", "rungs", "such"),
    [
        (4, 1, (1, 3, 9), ""),  # every third step, from 1 on, which skips the budget
        (12, 7, (10, 20, 30, 40, 50), ""),
        (2, 0, (1, 3, 9), ""),
        (11, 7, (1, 3, 9, 27), ", such as `rungs: [1, 3, 11, 27]`"),
        (11, 7, (1, 9, 27), ", such as `rungs: [1, 7, 23, 27]`"),
        (20, 10, (5, 10, 15, 20, 25, 30, 35, 40), ", such as `interval: 10`"),
        (5, 3, (1, 2, 3, 4, 5), ", such as `rungs: [1, 2, 3, 5]`"),
    ],
)
def test_suggested_rungs_are_steps_that_are_reported(
    step: int, since: int, rungs: tuple[int, ...], such: str
) -> None:
    found = refusal(step, since=since, rungs=rungs, max_steps=rungs[-1])
    assert found is not None
    assert found.remedy == f"Report at every rung, or give the study rungs at steps that you report{such}."
