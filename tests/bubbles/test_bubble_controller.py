"""The safety controller and its statistics, on random step times."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_services.bubble_agent import budget
from headrace_services.bubble_agent.budget import DISABLED, LEVELS
from headrace_services.bubble_agent.controller import LEAST_CONTROL, MOST, MOST_CONTROL, Controller
from headrace_services.bubble_agent.slowdown import LEAST, slowdown


def run(
    controller: Controller, *, steps: int, slower: Iterator[float] | float, noise: float, seed: int = 1
) -> list[int]:
    """Plays steps of 0.1 s; returns every level that the controller visited."""
    rng, visited = random.Random(seed), [controller.index]
    for _ in range(steps):
        control = rng.random() < controller.control_share
        share = slower if isinstance(slower, float) else next(slower)
        seconds = 0.1 * rng.gauss(1, noise) * (1 if control else 1 + share * controller.level.windows)
        if verdict := controller.observe(seconds=max(0.01, seconds), control=control):
            visited.append(verdict.level)
    return visited


def test_a_harmless_trial_keeps_its_whole_budget() -> None:
    controller = Controller()
    run(controller, steps=5000, slower=0.0, noise=0.01)
    seen = controller.slowdown()
    assert controller.index == 0
    assert seen is not None
    assert seen.high <= MOST


def test_a_slowed_primary_takes_the_budget_down_level_by_level() -> None:
    controller = Controller()
    visited = run(controller, steps=20_000, slower=0.5, noise=0.01)
    levels = [level for before, level in pairwise(visited) if level != before]
    assert levels[: DISABLED - 1] == list(range(1, DISABLED))
    assert controller.disabled
    assert "95 % bound" in controller.why


def test_half_the_windows_may_be_little_enough() -> None:
    """A slowdown of 3 % that disappears with a smaller budget: the controller stops where it is gone."""
    controller = Controller()
    rng = random.Random(3)
    for _ in range(20_000):
        control = rng.random() < controller.control_share
        harm = 0.03 if controller.index == 0 and not control else 0.0
        controller.observe(seconds=0.1 * (1 + harm) * rng.gauss(1, 0.005), control=control)
    assert controller.index in (0, 1)
    assert not controller.disabled


def test_noise_first_asks_for_control_steps_and_then_gives_up() -> None:
    controller = Controller()
    rng, shares = random.Random(5), set()
    for _ in range(400):
        control = rng.random() < controller.control_share
        controller.observe(seconds=0.1 * rng.lognormvariate(0, 0.3), control=control)
        shares.add(controller.control_share)
    assert controller.index == 0 or len(shares) > 1
    run(controller, steps=40_000, slower=0.0, noise=0.3)
    assert controller.index > 0  # nothing could be shown, so less was risked


def test_on_a_noisy_machine_harmless_trials_keep_theirs_and_harmful_ones_do_not() -> None:
    """Steps vary by 9 %, as on a virtual machine: the bound from a few steps is wide, and says little by itself."""
    harmless, harmful = [], []
    for seed in range(6):
        for levels, slower in ((harmless, 0.0), (harmful, 0.03)):
            controller = Controller()
            run(controller, steps=8000, slower=slower, noise=0.09, seed=seed)
            levels.append(controller.index)
    assert harmless.count(0) >= 4
    assert max(harmless) < DISABLED
    assert min(harmful) >= 2


@given(st.integers(0, 2**32), st.floats(0, 0.2), st.floats(0, 0.3))
@settings(max_examples=10)
def test_control_steps_never_become_rare(seed: int, slower: float, noise: float) -> None:
    controller, rng = Controller(), random.Random(seed)
    for _ in range(800):
        control = rng.random() < controller.control_share
        seconds = 0.1 * max(0.1, rng.gauss(1 + (0 if control else slower), noise))
        before = controller.index
        verdict = controller.observe(seconds=seconds, control=control)
        assert LEAST_CONTROL <= controller.control_share <= MOST_CONTROL
        if verdict is not None:
            assert abs(verdict.level - before) <= 1


def test_an_alarm_disables_at_once_and_for_good() -> None:
    controller = Controller()
    controller.alarm("the primary's allocator had to retry")
    run(controller, steps=3000, slower=0.0, noise=0.001)
    assert controller.disabled
    assert controller.why == "disabled: the primary's allocator had to retry"


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng, above = random.Random(11), 0
    for _ in range(300):
        filled = [rng.gauss(1.01, 0.05) for _ in range(200)]
        seen = slowdown(filled, [rng.gauss(1, 0.05) for _ in range(25)])
        assert seen is not None
        above += seen.high < 0.01
    assert 2 <= above <= 32  # one in twenty of 300 is 15


def test_few_steps_say_nothing_and_equal_steps_say_zero() -> None:
    assert slowdown([1.0] * 100, [1.0] * (LEAST - 1)) is None
    same = slowdown([2.0] * LEAST, [2.0] * LEAST)
    assert same is not None
    assert (same.mean, same.low, same.high) == (0, 0, 0)


def test_levels_only_take_away() -> None:
    for better, worse in pairwise(LEVELS):
        assert worse.windows <= better.windows
        assert worse.members <= better.members
    assert LEVELS[DISABLED].windows == 0


@given(st.integers(0, 10**12), st.integers(0, 10**11), st.integers(0, 10**11))
def test_memory_is_free_only_after_the_peak_is_known(free: int, reserved: int, more: int) -> None:
    peak = reserved + more
    assert budget.free_memory_bytes(free=free, reserved=reserved, peak=peak, steps=4) == 0
    usable = budget.free_memory_bytes(free=free, reserved=reserved, peak=peak, steps=5)
    assert 0 <= usable <= max(0, free - more)


@pytest.mark.parametrize(
    ("fitting", "level", "count"), [(16, 0, 16), (16, 3, 8), (1, 4, 1), (0, 0, 0), (9, 5, 0)]
)
def test_the_fusion_count_follows_the_level(fitting: int, level: int, count: int) -> None:
    assert budget.members(fitting=fitting, level=LEVELS[level]) == count
