"""The predictor on simulated time: it prefers short predictions, and forgets a job that has changed."""

import random

from hypothesis import given
from hypothesis import strategies as st

from headrace_services.bubble_agent import pipeline
from headrace_services.bubble_agent.predictor import HISTORY, LATEST, LEAST, Predictor

lengths = st.integers(1, 10**9)


def fed(values: list[int], *, slot: int = 0, generation: int = 0) -> Predictor:
    predictor = Predictor()
    for value in values:
        predictor.observe(slot=slot, length=value, generation=generation)
        predictor.observe_begin(slot=slot, after=7, generation=generation)
    return predictor


@given(st.lists(lengths, min_size=1, max_size=3 * HISTORY))
def test_a_prediction_is_never_longer_than_the_latest_windows(values: list[int]) -> None:
    predicted = fed(values).length(0)
    assert predicted is None or predicted <= min(values[-LATEST:])


@given(lengths, st.integers(0, LEAST - 1))
def test_nothing_is_predicted_from_few_windows(length: int, count: int) -> None:
    assert fed([length] * count).length(0) is None
    assert fed([length] * LEAST).length(0) == length


def test_one_long_pause_of_the_primary_changes_nothing() -> None:
    assert fed([100] * 10 + [10_000]).length(0) == 100


def test_two_short_windows_in_a_row_make_the_slot_relearn() -> None:
    predictor = fed([100] * 10)
    predictor.observe(slot=1, length=100, generation=0)
    predictor.observe(slot=0, length=50, generation=0)
    assert predictor.length(0) == 50
    predictor = fed([100] * 10)
    for _ in range(10):
        predictor.observe(slot=1, length=70, generation=0)
    predictor.observe(slot=0, length=60, generation=0)
    predictor.observe(slot=0, length=40, generation=0)
    assert predictor.length(0) is None
    assert predictor.length(1) == 70
    for _ in range(LEAST - 1):
        predictor.observe(slot=0, length=41, generation=0)
    assert predictor.length(0) == 40


def test_another_generation_forgets_and_an_older_one_is_not_heard() -> None:
    predictor = fed([100] * 10)
    predictor.observe(slot=0, length=10, generation=1)
    assert (predictor.length(0), predictor.generation) == (None, 1)
    for _ in range(10):
        predictor.observe(slot=0, length=100, generation=0)
    assert predictor.length(0) is None


def test_a_change_of_the_computing_time_leaves_the_latest_windows() -> None:
    predictor = fed([100] * 20 + [140] * LEAST)
    for _ in range(LEAST + 3):
        predictor.observe_computing(1000)
    predictor.observe_computing(4000)  # a slow step or two are noise
    predictor.observe_computing(4000)
    predictor.observe_computing(1000)
    assert predictor.length(0) == 100
    for _ in range(LEAST):
        predictor.observe_computing(1400)
    assert predictor.length(0) == 140
    assert predictor.relearnt == 1


def test_noise_does_not_make_a_stage_forget_all_the_time() -> None:
    rng, predictor, known = random.Random(3), Predictor(), 0
    for _ in range(400):
        predictor.observe(slot=0, length=int(20e6 * rng.lognormvariate(0, 0.5)), generation=0)
        predictor.observe_computing(int(100e6 * rng.lognormvariate(0, 0.4)))
        known += predictor.length(0) is not None
    assert known > 350


def test_windows_shorter_than_asked_are_left_out() -> None:
    predictor = fed([100] * 10)
    for _ in range(10):
        predictor.observe(slot=3, length=9, generation=0)
        predictor.observe_begin(slot=3, after=7, generation=0)
    assert predictor.table(shortest=10) == {0: 100}


def test_a_window_is_left_out_until_it_is_known_when_it_begins() -> None:
    predictor = Predictor()
    for _ in range(LEAST):
        assert predictor.table(shortest=1) == {}
        predictor.observe(slot=0, length=100, generation=0)
        predictor.observe_begin(slot=0, after=7, generation=-1)  # of the previous generation
    assert (predictor.length(0), predictor.table(shortest=1)) == (100, {})
    for _ in range(LEAST):
        predictor.observe_begin(slot=0, after=7, generation=0)
    assert predictor.table(shortest=1) == {0: 100}
    predictor.observe(slot=0, length=100, generation=1)
    assert predictor.latest_begin(0) is None


def test_one_late_begin_does_not_make_late_ones_usual() -> None:
    predictor = fed([100] * 19)
    predictor.observe_begin(slot=0, after=5000, generation=0)
    assert predictor.latest_begin(0) == 7


def test_a_hint_predicts_the_end_better_than_the_history() -> None:
    """Before a pass of varying length, only the neighbour knows when it started."""
    rng, predictor = random.Random(1), Predictor()
    for _ in range(HISTORY):
        before, last = rng.randrange(1000, 9000), rng.randrange(1900, 2100)
        predictor.observe(slot=0, length=before + last, generation=0, lag=last)
    by_history, by_hint = predictor.length(0), predictor.end_after_hint(0, 5000)
    assert by_history is not None
    assert by_history < 4000
    assert by_hint is not None
    assert 6900 <= by_hint <= 7100


def test_few_windows_of_a_simulated_pipeline_end_before_they_should() -> None:
    rng, predictor, over, total = random.Random(7), Predictor(), 0, 0
    free = [0.0] * 4

    def time(stage: int, kind: str, micro_batch: int) -> float:
        return (10e6 if kind == "F" else 20e6) * rng.uniform(0.97, 1.03)

    for _ in range(120):
        waits, free = pipeline.step(stages=4, micro_batches=8, time=time, begin=[max(free)] * 4)
        for wait in waits:
            if wait.stage != 1 or wait.length < 3e6:
                continue
            predicted = predictor.length(wait.slot)
            if predicted is not None:
                total += 1
                over += predicted > wait.length
            predictor.observe(slot=wait.slot, length=int(wait.length), generation=0)
    assert total > 300
    assert over / total < 0.08
