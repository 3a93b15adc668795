"""Warnings of a resumed trial that does not continue as it was saved: its count, its rate, its shape."""

import logging
import random
from collections.abc import Iterable

import pytest
import torch
from recording_runtime import RecordingRuntime

from headrace.trial import Trial, read_checkpoint


def report_with_optimizer(t: Trial, *, width: int = 1, in_loop: bool = False, count: int = 0) -> None:
    model = torch.nn.Linear(2, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=t.params["lr"])
    t.track(model=model, optimizer=optimizer)
    if in_loop:
        for group in optimizer.param_groups:
            group["lr"] = t.params["lr"]
    for _ in range(2):
        count += 1
        t.report(loss=1.0, step=count)


@pytest.fixture
def resumed(recording: RecordingRuntime, caplog: pytest.LogCaptureFixture) -> RecordingRuntime:
    report_with_optimizer(recording.trial())
    caplog.set_level(logging.WARNING)
    return recording


def test_a_count_that_starts_again_is_refused(
    resumed: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        ValueError, match=r"resumed after step 2, the script reports step 1 again.*t\.steps\(\)"
    ):
        report_with_optimizer(resumed.trial())
    caplog.clear()
    report_with_optimizer(resumed.trial(), count=2)
    assert caplog.text == ""


def own_loop(t: Trial, epochs: Iterable[int]) -> None:
    for _ in epochs:
        t.report(loss=1.0)


def test_a_loop_of_ones_own_that_may_start_again_is_reported_once(
    resumed: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    told = "resumed after step 2, and this report is outside t.steps()"
    own_loop(resumed.trial(), range(2))
    assert caplog.text.count(told) == 1
    caplog.clear()

    def again() -> Trial:
        del resumed.reports[2:]
        return resumed.trial()

    for knows in (lambda t: range(t.step, 4), lambda t: t.steps(), lambda t: range(2 * t.resumed, 4)):
        t = again()
        own_loop(t, knows(t))
    t = again()
    t.state["epoch"] = 2
    own_loop(t, range(t.state["epoch"], 4))
    again().report(loss=1.0, step=3)
    assert told not in caplog.text


def test_a_loop_that_starts_again_is_reported_though_it_reads_its_step_and_keeps_a_state(
    resumed: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    t = resumed.trial()
    for epoch in range(2):
        t.state["rate"] = f"{t.params['lr'] / (1 + epoch + t.step)}"
        t.report(loss=1.0)
    told = "resumed after step 2, and this report is outside t.steps()"
    assert caplog.text.count(told) == 1
    assert [any(told in said for said in report.warnings) for report in resumed.reports[2:]] == [True, False]


@pytest.mark.parametrize(("last_step", "tracked", "told"), [(3, False, 1), (0, False, 0), (3, True, 0)])
def test_steps_that_are_counted_again_are_reported_once(
    recording: RecordingRuntime, caplog: pytest.LogCaptureFixture, last_step: int, tracked: bool, told: int
) -> None:
    """For example a script without `track` that loads a checkpoint of its own: the weights continue, the count
    does not."""
    recording.last_step = last_step
    t = recording.trial()
    if tracked:
        t.track(model=torch.nn.Linear(2, 1))
    own_loop(t, t.steps())
    warning = (
        "this process reports step 1; an earlier one of the trial had come to step 3. Nothing is tracked"
    )
    assert caplog.text.count(warning) == told
    assert [any(warning in one for one in report.warnings) for report in recording.reports[:2]] == [
        bool(told),
        False,
    ]


def test_a_loop_of_ones_own_keeps_what_it_changes_before_its_first_report(
    recording: RecordingRuntime,
) -> None:
    """What is restored is restored before the loop; the first report restores nothing."""
    first = recording.trial()
    first.state["turns"] = 1
    first.report(loss=1.0, step=1, save=True)
    again = recording.trial()
    assert again.state["turns"] == 1
    again.state["turns"] += 1
    drawn = random.random()
    again.report(loss=1.0, step=2, save=True)
    assert again.state["turns"] == 2
    assert random.random() != drawn


def test_a_rate_that_the_checkpoint_brought_back_is_reported(
    resumed: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    resumed.params = {"lr": 0.3, "act": "relu"}
    report_with_optimizer(resumed.trial(), count=2)
    assert (
        caplog.text.count("lr is 0.3 now, but the tracked optimizer has 0.1, as the checkpoint brought it")
        == 1
    )
    caplog.clear()
    del resumed.reports[2:]
    report_with_optimizer(resumed.trial(), count=2, in_loop=True)
    assert caplog.text == ""


def test_a_rate_that_nobody_set_is_told_of_a_copy_of_a_copy_too(
    resumed: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """The copied member has 0.3 by its parameters, and 0.1 in its optimizer."""
    resumed.rungs = (2, 4, 6)
    resumed.params = {"lr": 0.3, "act": "relu"}
    report_with_optimizer(resumed.trial(), count=2)
    resumed.params = {"lr": 0.2, "act": "relu"}
    caplog.clear()
    report_with_optimizer(resumed.trial(), count=4)
    assert "lr is 0.2 now, but the tracked optimizer has 0.1, as the checkpoint brought it" in caplog.text


def test_a_shape_that_mutated_is_reported_first(resumed: RecordingRuntime) -> None:
    resumed.params = {"lr": 0.1, "act": "relu", "width": 3}
    with pytest.raises(RuntimeError, match="size mismatch"):  # no parameter of the checkpoint was changed
        report_with_optimizer(resumed.trial(), width=3)
    resumed.params = {"lr": 0.1, "act": "tanh"}
    with pytest.raises(ValueError, match=r"trained with act=relu \(now tanh\), does not fit\.") as caught:
        report_with_optimizer(resumed.trial(), width=3)
    first = str(caught.value).splitlines()[0]
    assert (
        "A parameter that shapes the model cannot mutate: leave it out of the study's policy.mutable" in first
    )


def test_a_checkpoint_is_read_outside_a_trial(resumed: RecordingRuntime) -> None:
    folder = resumed.reports[-1].checkpoint_dir
    assert folder is not None
    for where in (folder, str(folder), f"file://{folder}/"):
        saved = read_checkpoint(where)
        assert (saved.step, saved.params) == (2, resumed.params)
        torch.nn.Linear(2, 1).load_state_dict(saved.tracked["model"])
    with pytest.raises(ValueError, match="is not on this machine; copy it here with"):
        read_checkpoint("s3://bucket/step9-fde49678")
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        read_checkpoint("/nowhere")


def seeded(recording: RecordingRuntime) -> Trial:
    random.seed(7)
    return recording.trial()


def drawing_loop(t: Trial) -> list[float]:
    """A plain loop that draws, and tracks nothing."""
    drawn = []
    for step in range(t.step + 1, t.step + 3):
        drawn.append(random.random())
        t.report(loss=drawn[-1], step=step)
    return drawn


def test_random_numbers_that_start_again_in_a_loop_of_ones_own_are_reported(
    recording: RecordingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    told = "the random generators start over"
    first = seeded(recording)
    first.state["kept"] = 1
    drawn = drawing_loop(first)
    assert told not in caplog.text
    assert drawing_loop(seeded(recording)) == drawn, "which is why it is told"
    assert [any(told in one for one in report.warnings) for report in recording.reports[2:]] == [True, False]
    caplog.clear()
    del recording.reports[2:]
    again = seeded(recording)
    again.track()
    assert drawing_loop(again) != drawn
    del recording.reports[2:]
    for step in range(3, 5):  # draws nothing
        again = seeded(recording) if step == 3 else again
        again.report(loss=1.0, step=step)
    assert told not in caplog.text
