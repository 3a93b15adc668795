"""What is written for each event, and the names that trackers forbid."""

from copied_study import info, story, table, updates
from hypothesis import given
from hypothesis import strategies as st
from scripted_study import Script

from headrace.client import convert
from headrace.client.events import Event
from headrace.track import entries
from headrace.track.entries import Status
from headrace.track.names import for_folder, for_mlflow, for_wandb, original


def all_entries(script: Script) -> dict[int, list[entries.Entry]]:
    return entries.by_trial(event for update in updates(script) for event in update.events)


def test_every_report_is_a_point_and_every_trial_begins_with_its_parameters(script: Script) -> None:
    found = all_entries(script)
    assert sorted(found) == list(range(28))
    points: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for trial, its in found.items():
        first, *others = its
        assert first.params
        assert not any(entry.params for entry in others)
        for entry in its:
            for name, value in entry.metrics.items():
                assert entry.step is not None
                points.setdefault((trial, name), []).append((entry.step, value))
    assert str(points) == str({key: points[key] for key in points})
    expected = table(script)
    assert {key: str(value) for key, value in points.items()} == {
        key: str(value) for key, value in expected.items()
    }


def test_the_end_has_the_reason_and_the_deciding_rule(script: Script) -> None:
    found = all_entries(script)

    def last(trial: int, name: str) -> str:
        return next(entry.fields[name] for entry in reversed(found[trial]) if name in entry.fields)

    stopped = next(trial for trial in found if last(trial, "reason") == "stopped_early")
    assert last(stopped, "rule") == "asha_promotion"
    assert last(stopped, "decision").startswith("rank ")
    assert last(stopped, "state") == "terminated"
    assert last(13, "reason") == "failed"
    assert "ValueError" in last(13, "detail")
    assert [entry.status for entry in found[13] if entry.status][-1] is Status.FAILED
    assert [entry.status for entry in found[0] if entry.status] == [
        Status.WAITING,
        Status.RUNNING,
        Status.FINISHED,
    ]
    assert last(0, "baseline") == "true"


def test_a_trial_that_resumes_loses_its_reason() -> None:
    script = story()
    resumed = next(e for e in script.events if e.trial_moved.action == "resume")
    found = entries.entry_of(event_of(resumed))
    assert found is not None
    assert found.status is Status.RUNNING
    assert found.fields["reason"] == ""


def test_events_that_no_tracker_shows_are_left_out(script: Script) -> None:
    study_events = [event for event in script.events if not event.HasField("trial_number")]
    assert study_events
    assert not any(entries.entry_of(event_of(event)) for event in study_events)


def test_tables_give_the_points_of_the_events(script: Script) -> None:
    study = info(script)
    trials = [convert.trial(trial) for trial in script.final.trials]
    reports = [convert.report(report) for report in script.reports]
    found = entries.of_tables(study.cursor, trials, reports)
    events = all_entries(script)
    for trial, its in found.items():
        assert {entry.cursor for entry in its} == {study.cursor}
        assert dict(its[0].params or {}) == dict(events[trial][0].params or {})
        assert str([(e.step, dict(e.metrics)) for e in its if e.metrics]) == str(
            [(e.step, dict(e.metrics)) for e in events[trial] if e.metrics]
        )
        assert its[-1].status == [entry.status for entry in events[trial] if entry.status][-1]


def event_of(proto: object) -> Event:
    from headrace.client import convert_events

    return convert_events.event(proto)  # type: ignore[arg-type]


def test_allowed_names_stay_as_they_are() -> None:
    for name in ("loss", "val/loss", "top-5 acc.", "größe", "a_b", "_u_"):
        assert for_mlflow(name) == name
    assert for_wandb("val/loss") == "val/loss"
    assert for_folder("digits.2") == "digits.2"


def test_forbidden_names_are_mapped() -> None:
    assert for_mlflow("loss@val") == "loss_u40_val"
    assert for_mlflow("a//b") == "a/_u2f_b"
    assert for_mlflow("/a") == "_u2f_a"
    assert for_mlflow("../x") == "_u2e__u2e_/x"
    assert for_mlflow("x_u40_") == "x_u5f_u40_"
    assert for_wandb("_step") == "_u5f_step"
    assert for_folder("a/b") == "a_u2f_b"
    assert len(for_mlflow("x" * 300)) <= 250
    assert for_mlflow("x" * 300) != for_mlflow("x" * 301)


TEXTS = st.text(min_size=1, max_size=40) | st.text("_u4f@/.", min_size=1, max_size=12)


@given(TEXTS)
def test_a_mapped_name_is_allowed_and_leads_back(name: str) -> None:
    from fake_mlflow import _check

    if len(for_mlflow(name)) < 250:
        _check(for_mlflow(name))
        assert original(for_mlflow(name)) == name
    assert original(for_wandb(name)) == name
    assert not for_wandb(name).startswith("_") or for_wandb(name).startswith("_u5f_")
    assert original(for_folder(name)) == name
