"""The closed form of 1F1B's windows against a simulated pipeline, and against DeepSpeed's formula."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_services.bubble_agent import pipeline
from headrace_services.bubble_agent.windows import Kind, bubble_fraction, live_micro_batches, windows

shapes = st.integers(2, 8).flatmap(
    lambda s: st.tuples(st.just(s), st.integers(0, s - 1), st.integers(s, 4 * s))
)
times = st.floats(0.1, 10)


@given(shapes, times, times)
def test_windows_sum_to_the_bubble(shape: tuple[int, int, int], forward: float, backward: float) -> None:
    s, i, m = shape
    found = windows(stage=i, stages=s, micro_batches=m, forward=forward, backward=backward)
    total = sum(window.length for window in found)
    assert total == pytest.approx((s - 1) * (forward + backward))
    share = total / (total + m * (forward + backward))
    assert share == pytest.approx(bubble_fraction(stages=s, micro_batches=m))


@given(shapes, times, times)
def test_a_simulated_pipeline_waits_as_the_formula_says(
    shape: tuple[int, int, int], forward: float, backward: float
) -> None:
    s, i, m = shape
    waits, free = pipeline.step(
        stages=s,
        micro_batches=m,
        time=lambda _, kind, __: forward if kind == "F" else backward,
        begin=[0.0] * s,
    )
    end = max(free)
    assert end == pytest.approx((m + s - 1) * (forward + backward))
    mine = [wait.length for wait in waits if wait.stage == i]
    assert sum(mine) + end - free[i] == pytest.approx((s - 1) * (forward + backward))
    found = windows(stage=i, stages=s, micro_batches=m, forward=forward, backward=backward)
    assert mine[0] == pytest.approx(sum(w.length for w in found if w.kind is Kind.FILL))
    assert end - free[i] == pytest.approx(sum(w.length for w in found if w.kind is Kind.DRAIN))


def test_equal_passes_have_exactly_the_four_kinds() -> None:
    found = windows(stage=1, stages=4, micro_batches=6, forward=1, backward=2)
    assert [(window.kind, window.micro_batch, window.length) for window in found] == [
        (Kind.FILL, 0, 1),
        (Kind.TURN, 0, 4),
        (Kind.COOL_DOWN, 4, 1),
        (Kind.COOL_DOWN, 5, 1),
        (Kind.DRAIN, 5, 2),
    ]


def test_a_hint_leads_the_end_of_a_wait_by_the_neighbours_pass() -> None:
    waits, _ = pipeline.step(
        stages=2, micro_batches=4, time=lambda _, kind, __: 1.0 if kind == "F" else 2.0, begin=[0.0, 0.0]
    )
    led = [wait for wait in waits if wait.stage == 0 and wait.length > 0]
    assert led
    assert all(wait.hinted is not None and wait.ended - wait.hinted == 2.0 for wait in led)


@pytest.mark.parametrize(("stage", "stages", "micro_batches"), [(2, 2, 4), (-1, 2, 4), (0, 4, 3)])
def test_shapes_outside_the_formula_are_refused(stage: int, stages: int, micro_batches: int) -> None:
    with pytest.raises(ValueError, match="stage"):
        windows(stage=stage, stages=stages, micro_batches=micro_batches, forward=1, backward=1)


def test_live_micro_batches_are_those_of_deepspeeds_schedule() -> None:
    schedule = pytest.importorskip("deepspeed.runtime.pipe.schedule")
    for s in range(1, 6):
        for m in range(1, 9):
            for i in range(s):
                theirs = schedule.TrainSchedule(micro_batches=m, stages=s, stage_id=i).num_pipe_buffers()
                assert live_micro_batches(stage=i, stages=s, micro_batches=m) == theirs
