"""Rungs counted from the full budget down, and which policies have them."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spec import StudySpec
from headrace.spec.rungs import from_the_top
from headrace.spec.sampler import SAMPLERS, ModelBased


@pytest.mark.parametrize(
    ("min_steps", "eta", "max_steps", "levels"),
    [
        (1, 3, 50, (1, 2, 6, 17, 50)),
        (1, 3, 81, (1, 3, 9, 27, 81)),
        (5, 3, 500, (5, 19, 56, 167, 500)),
        (1, 2, 64, (1, 2, 4, 8, 16, 32, 64)),
        (10, 3, 25, (10, 25)),
        (3, 3, 3, (3,)),
        (1, 3, 1, (1,)),
    ],
)
def test_examples(min_steps: int, eta: int, max_steps: int, levels: tuple[int, ...]) -> None:
    assert from_the_top(min_steps, eta, max_steps) == levels


@given(st.integers(1, 1000), st.integers(2, 20), st.integers(0, 2**63))
def test_each_is_the_full_budget_over_a_power_of_eta(min_steps: int, eta: int, more: int) -> None:
    max_steps = min_steps + more
    levels = from_the_top(min_steps, eta, max_steps)
    assert levels[0] == min_steps
    assert levels[-1] == max_steps
    assert all(before < after for before, after in pairwise(levels))
    for power, level in enumerate(reversed(levels[1:])):
        assert abs(level - Fraction(max_steps, eta**power)) <= Fraction(1, 2)
    if len(levels) > 2:
        assert levels[1] >= 2 * min_steps


@pytest.mark.parametrize("kind", [kind for kind, one in SAMPLERS.items() if issubclass(one, ModelBased)])
def test_of_auto_they_are_the_rungs_with_a_model_over_all_of_them(kind: str) -> None:
    def rungs(policy: dict[str, object]) -> tuple[int, ...]:
        return StudySpec.model_validate(
            {
                "objective": {"metric": "loss", "goal": "minimize"},
                "space": {"x": {"type": "float", "low": 0, "high": 1}},
                "sampler": {"kind": kind},
                "policy": policy,
                "max_trials": 9,
                "max_steps": 50,
            }
        ).rungs()

    assert rungs({"kind": "auto"}) == ((1, 2, 6, 17, 50) if kind == "multi_fidelity" else (1, 3, 9, 27, 50))
    assert rungs({"kind": "auto", "rungs": [4, 50]}) == (4, 50)
    assert rungs({"kind": "auto", "min_steps": 2, "eta": 2})[0] == 2
    assert rungs({"kind": "asha"}) == (1, 3, 9, 27, 50)
