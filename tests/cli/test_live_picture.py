"""The live picture: figures, bars within the terminal's width, and an estimate only when there is a basis for one."""

from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console
from scripted_study import BEGAN, Script, race

from headrace.cli.live import Picture, event_text, noteworthy
from headrace.client import convert, convert_events
from headrace.client.events import Action, DecisionMade, Event, TrialMoved, Update
from headrace.client.model import TrialFailure, TrialState
from headrace.client.outcome import fallen
from headrace.client.wording import number, rungs_listed, thinned
from headrace.errors import UnreachableError
from headrace.spec import Scope
from headrace.v1 import event_pb2, spec_pb2


def picture_of(script: Script, first: int, last: int) -> Picture:
    """A view that started after `first` events and has seen `last`."""
    picture = Picture(
        convert.study(script.moments[first].study), expected_steps=143, now=BEGAN + timedelta(seconds=5)
    )
    events = tuple(convert_events.event(event) for event in script.events[first:last])
    picture.update(Update(events=events, study=convert.study(script.moments[last].study)))
    return picture


def text_of(picture: Picture, width: int) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(picture.draw(BEGAN + timedelta(seconds=40), width=width))
    return captured.get()


@pytest.mark.parametrize("width", [60, 72, 80, 120, 200])
def test_the_picture_fits_the_terminal(script: Script, width: int) -> None:
    text = text_of(picture_of(script, 10, len(script.events) // 2), width)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    bars = [line for line in text.splitlines() if line.startswith("step ")]
    assert len(bars) == 4
    assert "…" not in text
    words = " ".join(text.split())
    for sentence in (
        "trial 17 paused: rank 12 of 16 at step 1; the best 5 are promoted, so it waits",
        "trial 18 paused: rank 17 of 17 at step 1; the best 5 are promoted, so it waits",
        "optimizer=sgd lr=0.038566 width=91 momentum=0.57",
    ):
        assert sentence in words
    assert "18 recorded" in bars[0]
    for part in (
        "▶ 1 running",
        "‖ 17 paused",
        "✗ 1 failed",
        "67 of 756",
        "143 expected",
        "trial 15",
        "0.6059",
    ):
        assert part in text


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (80, 17), (200, 12)])
def test_the_picture_fits_a_low_terminal_and_keeps_the_newest_event(
    script: Script, width: int, height: int
) -> None:
    picture = picture_of(script, 10, len(script.events) // 2)
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(picture.draw(BEGAN + timedelta(seconds=40), width=width, height=height))
    lines = captured.get().splitlines()
    assert len(lines) <= max(height, 14)
    assert any("trial 15" in line for line in lines)
    assert "Ctrl-C" in lines[-1]
    if height >= 24:
        assert "trial 18 paused" in captured.get()
        assert "trial 17 paused" in captured.get()


def test_the_picture_says_what_a_study_waits_for(script: Script) -> None:
    picture = picture_of(script, 0, 9)
    assert "waits for" not in text_of(picture, 80)
    status = script.moments[9].study.status
    status.waits_for = "2 GPUs of 40 GiB"
    assert "▶ active, waits for 2 GPUs of 40 GiB" in text_of(picture_of(script, 0, 9), 80)


def test_the_picture_says_what_ctrl_c_does(script: Script) -> None:
    assert "Ctrl-C detaches" in text_of(picture_of(script, 0, 9), 80)
    study = convert.study(script.moments[9].study)
    local = Picture(study, expected_steps=None, now=BEGAN, leaving="Ctrl-C stops the service.")
    text = text_of(local, 80)
    assert "Ctrl-C stops the service." in text
    assert "detaches" not in text


def test_the_estimate_is_the_expected_rest_at_the_speed_seen(script: Script) -> None:
    picture = picture_of(script, 10, len(script.events) // 2)
    done = picture.study.steps_spent - script.moments[10].study.status.steps_spent
    assert picture.eta_s(BEGAN + timedelta(seconds=45)) == pytest.approx((143 - 67) * 40 / done)


def test_no_estimate_without_ground(script: Script) -> None:
    assert picture_of(script, 0, 2).eta_s(BEGAN + timedelta(seconds=2)) is None
    assert picture_of(script, 0, len(script.events) - 1).eta_s(BEGAN + timedelta(seconds=90)) is None


def test_a_broken_connection_is_shown_until_the_next_update(script: Script) -> None:
    picture = picture_of(script, 0, 30)
    picture.lose(UnreachableError("No Headrace scheduler answers at 10.0.0.1:7440."))
    lost = "Connection lost; reconnecting. No Headrace scheduler answers at 10.0.0.1:7440."
    assert lost in text_of(picture, 120)
    picture.update(Update(events=(), study=picture.study))
    assert "trying again" not in text_of(picture, 120)


def test_the_picture_warns_of_pauses_without_a_checkpoint(script: Script) -> None:
    warning = "save no checkpoint"
    assert warning not in text_of(picture_of(script, 1, 40), 200)
    forgetful = race()
    for event in forgetful.events:
        if event.trial_moved.action == "pause":
            event.trial_moved.action = "vacate"
    assert text_of(picture_of(forgetful, 1, 40), 200).count(warning) == 1


def test_the_picture_says_why_the_best_value_got_worse(script: Script) -> None:
    before = convert.study(script.final.study)
    assert before.best is not None
    assert before.best.score is not None
    next_best = replace(before.best, number=99, score=before.best.score + 1)
    failure = TrialFailure(trial=before.best.number, detail="RuntimeError: late", worker=None)
    now = replace(before, leader=next_best, failures=(failure,))
    assert now.best == next_best
    said = (
        f"trial {before.best.number}, the best before with {number(before.best.score)}, failed, so it counts"
    )
    assert said in fallen(before, now)
    unfailed = replace(now, failures=())
    assert "has a worse value since, or none that counts" in fallen(before, unfailed)
    objective = now.spec.objective.model_copy(update={"scope": Scope.BEST})
    by_best = replace(unfailed, spec=now.spec.model_copy(update={"objective": objective}))
    assert "its last value is not finite: it does not count now" in fallen(before, by_best)
    assert fallen(now, before) == fallen(now, now) == ""
    picture = Picture(before, expected_steps=None, now=BEGAN)
    picture.update(Update(events=(), study=now))
    assert said in text_of(picture, 120)
    picture.update(Update(events=(), study=before))
    assert said not in text_of(picture, 120)


def test_a_study_with_several_objectives_is_followed_though_it_has_no_best_trial() -> None:
    script = race()
    script.final.study.spec.policy.CopyFrom(spec_pb2.Policy(run_all=spec_pb2.RunAllPolicy()))
    script.final.study.spec.further_objectives.add(metric="accuracy", goal=spec_pb2.GOAL_MAXIMIZE)
    study = convert.study(script.final.study)
    picture = Picture(study, expected_steps=None, now=BEGAN)
    picture.update(Update(events=(), study=replace(study, leader=None)))
    assert text_of(picture, 120)
    assert fallen(study, replace(study, leader=None)) == ""


def test_that_a_trial_continues_is_no_news_of_a_rule_that_looks_at_every_step() -> None:
    def made(rule: str, action: Action) -> Event:
        proto = event_pb2.Event()
        proto.decision_made.explanation.rule = rule
        event = convert_events.event(proto)
        assert isinstance(event.detail, DecisionMade)
        return replace(event, detail=replace(event.detail, action=action))

    assert not noteworthy(made("running_median", Action.CONTINUE))
    assert noteworthy(made("running_median", Action.STOP))
    assert noteworthy(made("asha_promotion", Action.CONTINUE))


@pytest.mark.parametrize("count", [1, 24, 25, 256])
def test_very_many_rungs_are_thinned(count: int) -> None:
    rungs = range(1, count + 1)
    shown = thinned(rungs)
    assert (shown[0], shown[-1], len(shown)) == (1, count, min(count, 24))
    assert shown == sorted(set(shown))
    assert rungs_listed(rungs).count(",") == (count - 1 if count <= 24 else 4)


def test_a_trial_that_is_tried_again_is_told() -> None:
    moved = TrialMoved(
        from_state=TrialState.RUNNING,
        to_state=TrialState.PENDING,
        action="retry",
        attempt=1,
        worker="node-1",
        slots=(0,),
        reason=None,
        detail="ValueError: no data\nin two lines",
    )
    event = Event(cursor=3, time=None, trial=2, message="trial 2 running → pending (retry)", detail=moved)
    assert noteworthy(event)
    assert event_text(event) == "trial 2: failed, will be retried: ValueError: no data"


def test_a_line_names_its_trial_once() -> None:
    def said(trial: int, message: str) -> str:
        return event_text(Event(cursor=1, time=None, trial=trial, message=message, detail=None))

    assert said(1, "trial 12 lent its state") == "trial 1: trial 12 lent its state"
    assert said(12, "trial 12 lent its state") == "trial 12 lent its state"
    assert said(1, "Trial 1: running") == "Trial 1: running"
    assert said(1, "trial 1") == "trial 1"
    assert said(1, "running") == "trial 1: running"
