"""Steps in a loop that a framework owns."""

from recording_runtime import RecordingRuntime

from headrace_torch.turns import Turns


def test_a_trial_that_resumes_after_its_last_step_reports_nothing(recording: RecordingRuntime) -> None:
    def turns() -> Turns:
        t = recording.trial()
        t.state["kept"] = 1  # so that checkpoints are saved
        found = Turns(t, "TrialCallback")
        found.begin()
        return found

    trained = turns()
    assert [trained.end({"loss": 1.0}) for _ in range(4)] == [True, True, True, False]
    resumed = turns()  # the process was killed before it ended
    assert not resumed.end({"loss": 1.0}), "an evaluation of a framework that has nothing left to train"
    assert [report.step for report in recording.reports] == [1, 2, 3, 4]
