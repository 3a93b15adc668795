"""Listings in a pipe: JSON with its documented keys, and plain text without colour or shortening."""

import json
import re

import grpc
import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace.cli import views
from headrace.cli.output import Output
from headrace.client import convert_events
from headrace.v1 import event_pb2, spec_pb2, study_pb2

TRIAL_KEYS = {
    "source",
    "bundle",
    "bubbles",
    "bundle_members",
    "bundle_seats",
    "study",
    "trial",
    "state",
    "reason",
    "detail",
    "baseline",
    "best_checkpoint",
    "code",
    "code_changed",
    "other_code",
    "result_of_other_code",
    "params",
    "last_params",
    "bracket",
    "step",
    "value",
    "best_value",
    "best_step",
    "best_metrics",
    "score",
    "score_step",
    "metrics",
    "objectives",
    "feasible",
    "generation",
    "rungs",
    "lineage",
    "steps_spent",
    "failures",
    "interruptions",
    "worker",
    "last_worker",
    "slots",
    "slot_milli",
    "waits_for",
    "checkpoint",
    "log_path",
    "earlier_ends",
    "counted_end",
    "counted_metrics",
    "counts_as",
    "schedules",
    "created",
    "started",
    "ended",
    "unshown",
    "tags",
    "note",
}
STUDY_KEYS = {
    "started",
    "over_s",
    "name",
    "uid",
    "project",
    "state",
    "detail",
    "metric",
    "goal",
    "objectives",
    "constraints",
    "trials",
    "best",
    "front",
    "failures",
    "waits_for",
    "warm_results",
    "bundle_sizes",
    "scale_choice",
    "code",
    "plan",
    "until",
    "schedules",
    "code_changed",
    "on_code_change",
    "baseline",
    "rungs",
    "steps_spent",
    "steps_run_all",
    "max_trials",
    "max_steps",
    "created",
    "ended",
    "unshown",
    "tags",
    "note",
}


def test_studies(fake: FakeStudyService, invoke: Invoke) -> None:
    (study,) = json.loads(invoke("studies", "--json").out)
    assert set(study) == STUDY_KEYS
    assert study["trials"] == {
        "total": 28,
        "pending": 0,
        "running": 0,
        "paused": 0,
        "resumed": 0,
        "terminated": 28,
        "completed": 4,
        "stopped_early": 23,
        "failed": 1,
        "cancelled": 0,
        "infeasible": 0,
    }
    header, row = invoke("studies").out.splitlines()
    assert header.split() == [
        "STUDY",
        "STATE",
        "TRIALS",
        "LIVE",
        "FAILED",
        "STEPS",
        "METRIC",
        "BEST",
        "CREATED",
    ]
    assert row.split()[:8] == ["digits", "completed", "28", "0", "1", "155/756", "val_loss", "0.36774"]


def test_a_study_that_waits_says_for_what(fake: FakeStudyService, invoke: Invoke) -> None:
    waiting = race("waiting")
    waiting.moments[1].study.status.waits_for = "4 GPUs"
    fake.add(waiting, shown=2)
    listed = invoke("studies")
    assert listed.err == "waiting waits for 4 GPUs: see `headrace trials waiting`.\n"
    assert "waiting" in listed.out
    found = json.loads(invoke("studies", "--json").out)
    assert {study["name"]: study["waits_for"] for study in found} == {"waiting": "4 GPUs", "digits": ""}
    assert "Study waiting active, waits for 4 GPUs\n" in invoke("show", "waiting").out


@pytest.mark.parametrize(("results", "said"), [(0, "0 results"), (1, "1 result"), (None, None)])
def test_show_says_what_a_warm_start_brought(
    fake: FakeStudyService, invoke: Invoke, results: int | None, said: str | None
) -> None:
    script = fake.add(race("warm"))
    study = script.final.study
    study.spec.warm_start.study = "digits-may"
    study.spec.sampler.tpe.SetInParent()
    if results is not None:
        study.status.warm_results = results
    shown = invoke("show", "warm").out
    assert ("warm start" in shown) == (said is not None)
    if said is not None:
        assert f"the sampler began from {said} of study digits-may" in shown
    assert json.loads(invoke("show", "warm", "--json").out)["warm_results"] == results


def test_what_a_list_leaves_out_is_reported_beside_it(fake: FakeStudyService, invoke: Invoke) -> None:
    fake.unshown.append(study_pb2.Unshown(name="studies/broken", reason="its spec cannot be read"))
    for arguments in (["studies"], ["studies", "--json"]):
        result = invoke(*arguments)
        assert result.code == 0
        assert "digits" in result.out
        assert result.err == "studies/broken cannot be shown: its spec cannot be read\n"


def test_no_studies_is_shown_beside_the_result(fake: FakeStudyService, invoke: Invoke) -> None:
    fake.scripts.clear()
    result = invoke("studies")
    assert (result.code, result.out) == (0, "")
    assert "headrace run" in result.err
    assert json.loads(invoke("studies", "--json").out) == []


def test_trials_are_sorted_best_first(fake: FakeStudyService, invoke: Invoke) -> None:
    trials = json.loads(invoke("trials", "digits", "--json").out)
    assert set(trials[0]) == TRIAL_KEYS
    values = [trial["best_value"] for trial in trials]
    assert values[:-1] == sorted(values[:-1])
    assert trials[-1]["trial"] == 13
    assert trials[-1]["best_value"] is None
    assert list(trials[0]["params"]) == ["optimizer", "lr", "width"]
    assert [t["trial"] for t in json.loads(invoke("trials", "digits", "-n", "2", "--json").out)] == [22, 26]


@pytest.mark.parametrize(
    ("states", "count"),
    [
        (["failed", "completed"], 5),
        (["terminated"], 28),
        (["running"], 0),
    ],
)
def test_trials_are_chosen_by_what_the_column_says(
    fake: FakeStudyService, invoke: Invoke, states: list[str], count: int
) -> None:
    options = [word for state in states for word in ("--state", state)]
    found = json.loads(invoke("trials", "digits", *options, "--json").out)
    assert len(found) == count
    assert all({trial["state"], trial["reason"]} & set(states) for trial in found)
    assert len(invoke("trials", "digits", *options).out.splitlines()) == count + 1


def test_an_unknown_state_is_refused_with_the_known_ones(fake: FakeStudyService, invoke: Invoke) -> None:
    result = invoke("trials", "digits", "--state", "unknown")
    assert result.code == 2
    assert "stopped_early" in result.err


@pytest.mark.parametrize(
    "command",
    [
        ["studies"],
        ["trials", "digits"],
        ["show", "digits"],
        ["show", "digits", "13"],
        ["why", "digits", "5"],
        ["why", "digits", "13"],
        ["workers"],
    ],
)
def test_plain_text_has_no_escapes_and_is_not_shortened(
    fake: FakeStudyService, invoke: Invoke, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    worker = study_pb2.WorkerStatus(name="workers/node-" + "x" * 90, connected=True)
    worker.slots.add(index=0, device="cpu")
    fake.workers.append(worker)
    result = invoke(*command)
    assert result.code == 0
    assert "\x1b" not in result.out + result.err
    assert "…" not in result.out
    if command == ["workers"]:
        assert "x" * 90 in result.out
    if command == ["why", "digits", "13"]:
        assert "ValueError: loss is nan <b>[bold]" in result.out
        assert r"\x1b[31mnan" in result.out


def test_wide_characters_are_whole_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(["NAME", "AT"], [["学習率=0.1", "1"], ["lr=0.1", "22"]], right=["AT"])
    assert capsys.readouterr().out.splitlines() == ["NAME        AT", "学習率=0.1   1", "lr=0.1      22"]


def test_a_trial_in_full(fake: FakeStudyService, invoke: Invoke) -> None:
    trial = json.loads(invoke("show", "digits", "22", "--json").out)
    assert set(trial) == TRIAL_KEYS
    assert [rung["milestone"] for rung in trial["rungs"]] == [1, 3, 9, 27]
    text = invoke("show", "digits", "22").out
    assert "Trial 22 of study digits" in text
    assert "rung at step 27" in text


def test_what_a_trial_waits_for_is_shown_wherever_the_trial_is(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    waiting = race()
    waiting.final.trials[3].waits_for = "4 GPUs free on one worker"
    fake.add(waiting)
    for command in (["show", "digits", "3"], ["why", "digits", "3"], ["trials", "digits"]):
        text = " ".join(invoke(*command).out.split())
        assert text.count("waits for 4 GPUs free on one worker") == 1, command
    assert json.loads(invoke("show", "digits", "3", "--json").out)["waits_for"] == "4 GPUs free on one worker"


def test_in_whose_bubbles_a_trial_ran_is_shown_wherever_the_trial_is(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    waiting = race()
    waiting.final.trials[3].bubbles.extend(["job gpt, stage 2", "job gpt, stage 0"])
    fake.add(waiting)
    for command in ("show", "why"):
        assert "ran in bubbles of job gpt, stage 2; job gpt, stage 0" in invoke(command, "digits", "3").out
    told = json.loads(invoke("show", "digits", "3", "--json").out)["bubbles"]
    assert told == ["job gpt, stage 2", "job gpt, stage 0"]


def test_why_shows_rule_values_rank_cutoff_and_slot(fake: FakeStudyService, invoke: Invoke) -> None:
    text = invoke("why", "digits", "5").out
    for part in (
        "PAUSE",
        "asha_promotion",
        "rank 3 of 5",
        "keeps 1",
        "cutoff 1.7066",
        "the slot went to trial digits/6",
    ):
        assert part in text
    story = json.loads(invoke("why", "digits", "5", "--json").out)
    assert set(story) == {"trial", "decisions", "events", "log_tail"}
    assert set(story["decisions"][0]) == {
        "rule",
        "bracket",
        "rung",
        "milestone",
        "value",
        "rank",
        "results",
        "kept",
        "cutoff_value",
        "sentence",
        "slot_goes_to",
        "pause_price",
        "probability",
        "expected_value",
        "expected_spread",
    }
    assert {event["kind"] for event in story["events"]} == {
        "trial_created",
        "trial_moved",
        "report_recorded",
        "rung_recorded",
        "decision_made",
    }


def test_a_pause_names_what_the_decision_before_it_did_not(fake: FakeStudyService, invoke: Invoke) -> None:
    """A trial that was promoted, and left its slots to another study."""
    script = race("left")
    decided = next(event for event in script.events if event.HasField("decision_made"))
    sentence = decided.decision_made.explanation.sentence
    paused = next(
        event
        for event in script.events
        if event.trial_number == decided.trial_number
        and event.HasField("trial_moved")
        and event.cursor > decided.cursor
    )
    paused.trial_moved.action = "pause"
    paused.trial_moved.detail = f"{sentence}; study 'urgent' needs its slots"
    fake.add(script)
    (line,) = [
        line for line in invoke("why", "left", str(decided.trial_number)).out.splitlines() if "urgent" in line
    ]
    assert line.endswith(": study 'urgent' needs its slots")


def test_events_are_listed_up_to_now_all_or_one_trials(
    fake: FakeStudyService, script: Script, invoke: Invoke
) -> None:
    told = [json.loads(line) for line in invoke("events", "digits", "--json").out.splitlines()]
    assert [event["cursor"] for event in told] == [event.cursor for event in script.events]
    assert {event["type"] for event in told} == {"event"}
    of_one = invoke("events", "digits", "--trial", "5").out.splitlines()
    assert len(of_one) == sum(event["trial"] == 5 for event in told)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  .*trial 5\b", line) for line in of_one), of_one


def test_events_of_a_running_study_end_with_the_newest(fake: FakeStudyService, invoke: Invoke) -> None:
    fake.shown["studies/digits"] = 20
    assert len(invoke("events", "digits").out.splitlines()) == 20


def test_a_slot_that_goes_to_the_trial_itself_is_no_news(fake: FakeStudyService, invoke: Invoke) -> None:
    """It paused, and was promoted in the same cycle."""
    own = race()
    for event in own.events:
        if event.trial_number == 5 and event.decision_made.explanation.slot_goes_to:
            event.decision_made.explanation.slot_goes_to = "studies/digits/trials/5"
            event.message = event.message.partition("; its slot goes to")[0] + "; its slot goes to trial 5"
    fake.add(own)
    assert "slot goes to trial 5" not in invoke("events", "digits").out
    assert "the slot went to trial" not in invoke("why", "digits", "5").out


def test_a_log_of_an_interrupted_attempt_is_told_as_that(fake: FakeStudyService, invoke: Invoke) -> None:
    own = race()
    own.final.trials[5].log_tail = "step 13"
    fake.add(own)
    assert "The end of the log:" in invoke("why", "digits", "5").out
    own.final.trials[5].interruptions = 1
    assert "The end of the log of the last attempt that was interrupted:" in invoke("why", "digits", "5").out


def test_a_trial_that_left_the_objective_out_says_so(fake: FakeStudyService, invoke: Invoke) -> None:
    own = race()
    metrics = own.final.trials[5].metrics
    metrics["losss"] = metrics.pop("val_loss")
    fake.add(own)
    assert "did not report val_loss at its end" in invoke("trials", "digits").out


def test_every_kind_of_event_has_its_name_and_its_detail() -> None:
    kinds = event_pb2.Event.DESCRIPTOR.oneofs_by_name["detail"].fields
    for field in kinds:
        proto = event_pb2.Event(message="m")
        getattr(proto, field.name).SetInParent()
        shown = views.event(convert_events.event(proto))
        assert (shown["kind"], field.name in shown) == (field.name, True)
    assert views.event(convert_events.event(event_pb2.Event(message="m")))["kind"] == "note"


def test_numbers_that_json_lacks_are_strings(fake: FakeStudyService, invoke: Invoke, script: Script) -> None:
    trial = script.final.trials[13]
    trial.value = float("nan")
    trial.metrics["val_loss"] = float("inf")
    found = json.loads(invoke("show", "digits", "13", "--json").out, parse_constant=pytest.fail)
    trial.ClearField("value")
    assert found["value"] == "NaN"
    assert found["metrics"]["val_loss"] == "Infinity"


def test_of_several_objectives_no_value_is_the_best(fake: FakeStudyService, invoke: Invoke) -> None:
    script = fake.add(race())
    script.final.study.spec.policy.CopyFrom(spec_pb2.Policy(run_all=spec_pb2.RunAllPolicy()))
    script.final.study.spec.further_objectives.add(metric="accuracy", goal=spec_pb2.GOAL_MAXIMIZE)
    _, row = invoke("studies").out.splitlines()
    assert "val_loss, accuracy  Pareto front" in row


def test_of_equal_values_those_that_completed_come_first_then_those_that_trained_further(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    script = fake.add(race())
    completed = [t for t in script.final.trials if t.termination_reason == 1 and not t.baseline]
    for trial in script.final.trials:
        if trial.HasField("best_value"):
            trial.best_value = trial.score = 0.5
    listed = [t["trial"] for t in json.loads(invoke("trials", "digits", "--json").out)]
    assert set(listed[:4]) == {t.number for t in completed} | {0}
    steps = [script.final.trials[number].step for number in listed[4:-1]]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@pytest.mark.parametrize(
    ("fuse", "said"),
    [
        (spec_pb2.Fuse(most=16), "up to 16 trials"),
        (spec_pb2.Fuse(most=1024, auto=True), "2 trials share a process until more is measured"),
    ],
)
def test_a_study_shows_how_many_trials_share_a_process_and_why(
    fake: FakeStudyService, invoke: Invoke, fuse: spec_pb2.Fuse, said: str
) -> None:
    study = fake.add(race("fused")).final.study
    study.spec.template.callable = "train:train"
    study.spec.fuse.CopyFrom(fuse)
    assert f"bundles  {said}" in re.sub("  +", "  ", invoke("show", "fused").out)
    turn = study_pb2.BundleTurn(members=8, turn_s=0.5, memory_bytes=7)
    size = study.status.bundle_sizes.add(
        device="H100", apart="[64]", trials=8, reason="8 do 16", turns=[turn]
    )
    assert "bundles  up to 8 trials on H100 with [64]: 8 do 16" in re.sub(
        "  +", "  ", invoke("show", "fused").out
    )
    assert "first step" not in invoke("show", "fused").out
    size.first_step_s, size.later_step_s, size.first_step_trials = 1.234, 0.0325, 4
    assert "the first step of 4 trials takes 1.23 s, as long as 38 later ones" in invoke("show", "fused").out
    (found,) = json.loads(invoke("show", "fused", "--json").out)["bundle_sizes"]
    assert found == {
        "device": "H100",
        "apart": "[64]",
        "trials": 8,
        "reason": "8 do 16",
        "member_bytes": 0,
        "turns": [{"members": 8, "turn_s": 0.5, "memory_bytes": 7, "fresh": False}],
        "first_step_s": 1.234,
        "later_step_s": 0.0325,
        "first_step_trials": 4,
    }


def test_a_study_shows_the_importance_of_its_parameters(fake: FakeStudyService, invoke: Invoke) -> None:
    fake.importances = [("lr", 0.61, 11), ("width", 0.3, 11), ("momentum", 0.09, 6)]
    shown = invoke("show", "digits").out
    assert "among the best by val_loss, of the 11 trials that reached step 3:" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["PARAMETER", "IMPORTANCE", "TRIALS"] in rows
    assert ["lr", "61", "%", "11"] in rows
    (found,) = json.loads(invoke("show", "digits", "--json").out)["importance"]
    assert found == {
        "metric": "val_loss",
        "step": 3,
        "trials": 11,
        "parameters": [
            {"parameter": "lr", "share": 0.61, "trials": 11},
            {"parameter": "width", "share": 0.3, "trials": 11},
            {"parameter": "momentum", "share": 0.09, "trials": 6},
        ],
        "reason": "",
    }


def test_a_study_without_importance_says_why(fake: FakeStudyService, invoke: Invoke) -> None:
    assert "Importance of parameters: not known, at most 3 trials reached" in invoke("show", "digits").out


def test_a_scheduler_that_knows_no_importance_takes_nothing_else_away(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    for command in (("show", "digits"), ("show", "digits", "--json")):
        fake.fail_next("MeasureImportance", grpc.StatusCode.UNIMPLEMENTED)
        ran = invoke(*command)
        assert ran.code == 0
        assert "it cannot be measured" in ran.out
