"""An in-process study counts its hours like a scheduler: while its caller holds a trial."""

import pytest

from headrace.spec import StudySpec
from headrace.spec.until import Until
from headrace_services.scheduler.in_process import study as in_process
from headrace_services.scheduler.in_process.study import InProcessStudy

SPEC = StudySpec.model_validate(
    {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "policy": {"kind": "run_all"},
        "max_trials": 5,
        "max_steps": 2,
        "seed": 1,
        "until": Until(hours=2).model_dump(),
    }
)


def test_hours_count_from_the_first_trial_and_not_between_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1e6  # the machine has run for days
    monkeypatch.setattr(in_process.time, "monotonic", lambda: now_s)
    study = InProcessStudy(SPEC, name="s")
    first = study.ask()
    assert first is not None
    now_s += 3600
    assert study.report(first, 1, {"loss": 0.5}, held=False).action.name == "CONTINUE"
    study.finish(first)
    now_s += 36_000  # nobody holds a trial
    second = study.ask()
    assert second is not None
    info, _, _ = study.show()
    assert info.until is not None
    assert info.until.time_left_s == 3600
    assert info.until.deadline is not None
    assert info.created is not None
    assert (info.until.deadline - info.created).total_seconds() == pytest.approx(3600, abs=60)
    now_s += 3600
    assert study.report(second, 1, {"loss": 0.4}, held=False).action.name == "STOP"
    assert study.ask() is None
    assert study.show()[0].detail == "its trials have run for 2 hours (until: 2 hours)"
