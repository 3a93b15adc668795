"""Which steps may be reported, and what a user is told who counts in another unit."""

import pytest

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
            f"Report at every rung, {WHERE} `rungs: [2, 6, 9]`.",
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
