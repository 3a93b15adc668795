"""The MLflow adapter with a double of MLflow: kills at every call, lost answers, deleted runs and experiments."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from copied_study import KilledError, Points, copied, info, same, story, table, updates
from exporter_site import cut
from fake_mlflow import LARGEST, FakeServer, MlflowException
from scripted_study import Script

from headrace.client.events import Update
from headrace.errors import HeadraceError
from headrace.track.names import original
from headrace.track.targets import RunsTarget
from headrace.track.tracker import AwayError, ForgottenError, RefusedError, RunsSink, Start

MakeTool = Callable[[], Any]


@pytest.fixture
def make_tool(fake_server: FakeServer) -> MakeTool:
    """Makes the tool of a new process."""
    from headrace.track.mlflow_runs import MlflowTool

    return lambda: MlflowTool("http://double")


def write_all(sink: RunsSink, todo: Iterable[Update]) -> None:
    for update in todo:
        sink.write(update)


def points(server: FakeServer) -> Points:
    found: Points = {}
    for run in server.runs.values():
        for one in run.points if run.stage == "active" else ():
            key = int(run.tags["headrace.trial"]), original(one.key)
            found.setdefault(key, []).append((one.step, one.value))
    return found


def test_a_study_is_an_experiment_with_a_run_for_each_trial(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    said: list[str] = []
    copied(make_tool(), script, said)
    (experiment,) = fake_server.experiments.values()
    assert experiment.name == "digits"
    assert experiment.tags["headrace.cursor"] == str(len(script.events))
    same(points(fake_server), table(script), LARGEST)
    failed = fake_server.run_of(13)
    assert failed.status == "FAILED"
    assert failed.name == "trial 13"
    assert failed.tags["headrace.reason"] == "failed"
    assert fake_server.run_of(0).status == "FINISHED"
    assert fake_server.run_of(1).params["optimizer"] == "sgd"
    assert "loss_u40_val = loss@val" in fake_server.run_of(1).tags["headrace.renamed"]
    assert sum("'loss@val'" in line for line in said) == 1


@pytest.mark.cases(30)
@pytest.mark.parametrize("place", range(0, 1200, 5))
def test_a_kill_at_any_call_doubles_and_loses_nothing(
    fake_server: FakeServer, make_tool: MakeTool, script: Script, place: int
) -> None:
    """Before the effect of a call, in the middle of it, or after it."""
    moments = iter(range(10_000))

    def fail(when: str, call: str) -> None:
        if next(moments) == place:
            raise KilledError

    fake_server.fail = fail
    for _ in range(2):
        try:
            copied(make_tool(), script, [], batch=23)
        except KilledError:
            continue
    same(points(fake_server), table(script), LARGEST)
    assert len(fake_server.experiments) == 1
    assert sum(run.stage == "active" for run in fake_server.runs.values()) == 28


def test_many_kills_in_one_copy(fake_server: FakeServer, make_tool: MakeTool, script: Script) -> None:
    count = 0

    def fail(when: str, call: str) -> None:
        nonlocal count
        count += 1
        if count % 37 == 0:
            raise KilledError

    fake_server.fail = fail
    for _ in range(500):
        try:
            copied(make_tool(), script, [], batch=3)
        except KilledError:
            continue
        break
    else:
        pytest.fail("it never ended")
    same(points(fake_server), table(script), LARGEST)


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_lost_answer_is_made_up_for_in_the_same_process(
    fake_server: FakeServer, make_tool: MakeTool, script: Script, when: str
) -> None:
    rng = random.Random(5)

    def fail(moment: str, call: str) -> None:
        if moment == when and rng.random() < (0.3 if when == "between" else 0.1):
            raise MlflowException("API request to /x failed with exception timeout")

    sink = RunsSink(make_tool().open(info(script), print, Start.RESUME))
    fake_server.fail = fail
    failures = 0
    for update in updates(script):
        while True:
            try:
                sink.write(update)
            except AwayError:
                failures += 1
                continue
            break
    assert failures > 20
    same(points(fake_server), table(script), LARGEST)
    assert sum(run.stage == "active" for run in fake_server.runs.values()) == 28


def test_a_deleted_run_stays_deleted_and_is_said_once(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    said: list[str] = []
    sink = RunsSink(make_tool().open(info(script), said.append, Start.RESUME))
    todo = iter(updates(script))
    while not any("headrace.cursor" in run.tags for run in fake_server.runs.values()):
        sink.write(next(todo))
    fake_server.run_of(0).stage = "deleted"
    for update in todo:
        sink.write(update)
    assert [line for line in said if "deleted" in line] == [
        "The run of trial 0 was deleted in MLflow: nothing more is written to it."
    ]
    expected = {key: value for key, value in table(script).items() if key[0] != 0}
    same(points(fake_server), expected, LARGEST)
    copied(make_tool(), script, said, again=True)
    same(points(fake_server), expected, LARGEST)


def test_a_deleted_experiment_is_said_with_the_remedy(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    sink = RunsSink(make_tool().open(info(script), print, Start.RESUME))
    todo = list(updates(script))
    for update in todo[:5]:
        sink.write(update)
    (experiment,) = fake_server.experiments.values()
    experiment.lifecycle_stage = "deleted"
    for run in fake_server.runs.values():
        run.stage = "deleted"
    with pytest.raises(RefusedError, match="was deleted") as caught:
        write_all(sink, todo[5:])
    assert "mlflow experiments restore" in caught.value.remedy
    with pytest.raises(RefusedError, match="was deleted"):
        make_tool().open(info(script), print, Start.RESUME)
    experiment.lifecycle_stage = "active"
    for run in fake_server.runs.values():
        run.stage = "active"
    copied(make_tool(), script, [])
    same(points(fake_server), table(script), LARGEST)


def test_a_server_that_lost_everything_gets_it_again(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    sink = RunsSink(make_tool().open(info(script), print, Start.RESUME))
    todo = list(updates(script))
    for update in todo[:20]:
        sink.write(update)
    fake_server.forget()
    with pytest.raises(ForgottenError):
        write_all(sink, todo[20:])
    copied(make_tool(), script, [], again=True)
    same(points(fake_server), table(script), LARGEST)


def test_a_run_that_is_gone_for_good_is_written_again(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    sink = RunsSink(make_tool().open(info(script), print, Start.RESUME))
    todo = list(updates(script))
    for update in todo[:5]:
        sink.write(update)
    later = {event.trial for update in todo[5:] for event in update.events}
    gone = [run_id for run_id, run in fake_server.runs.items() if int(run.tags["headrace.trial"]) in later]
    del fake_server.runs[gone[0]]
    with pytest.raises(ForgottenError):
        write_all(sink, todo[5:])
    copied(make_tool(), script, [], again=True)
    same(points(fake_server), table(script), LARGEST)


@pytest.mark.parametrize("status", [401, 403])
def test_rejected_credentials_are_named_with_the_variables(
    fake_server: FakeServer, make_tool: MakeTool, script: Script, status: int
) -> None:
    def fail(when: str, call: str) -> None:
        raise MlflowException(f"API request to endpoint /x failed with error code {status} != 200.")

    fake_server.fail = fail
    with pytest.raises(RefusedError, match="rejects the credentials") as caught:
        make_tool().open(info(script), print, Start.RESUME)
    assert "MLFLOW_TRACKING_TOKEN" in caught.value.remedy


def test_a_study_of_the_same_name_gets_another_experiment(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    copied(make_tool(), script, [])
    later = story()
    for moment in later.moments:
        moment.study.uid = "fedcba9876543210"
    copied(make_tool(), later, [])
    assert sorted(one.name for one in fake_server.experiments.values()) == ["digits", "digits (fedcba98)"]
    assert len(fake_server.runs) == 56


def test_a_parameter_that_is_too_long_is_cut(fake_server: FakeServer, make_tool: MakeTool) -> None:
    script = story()
    for event in script.events:
        if event.HasField("trial_created"):
            event.trial_created.parameters.values["optimizer"].string_value = "x" * 10_000
    said: list[str] = []
    copied(make_tool(), script, said)
    assert len(fake_server.run_of(0).params["optimizer"]) == 6000
    assert [line for line in said if "is cut to" in line] == [
        "The parameter 'optimizer' is cut to 6000 characters in MLflow."
    ]


def test_what_mlflow_rejects_is_left_out_alone(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    """A point, a parameter and a tag: the rest of their requests is kept, once, and each is said once."""
    fake_server.rejected = frozenset({"val_loss", "momentum", "headrace.worker"})
    said: list[str] = []
    copied(make_tool(), script, said, batch=50)
    expected = {key: value for key, value in table(script).items() if key[1] != "val_loss"}
    same(points(fake_server), expected, LARGEST)
    run = fake_server.run_of(1)
    assert run.params.keys() == {"lr", "width", "optimizer"}
    assert run.tags["headrace.reason"]
    assert "headrace.worker" not in run.tags
    assert sorted(line for line in said if "left out" in line) == [
        "MLflow does not take 'headrace.worker', which is left out: headrace.worker is not taken.",
        "MLflow does not take 'momentum', which is left out: momentum is not taken.",
        "MLflow does not take 'val_loss', which is left out: val_loss is not taken.",
    ]


def test_points_that_were_stored_before_a_tag_was_rejected_are_not_doubled(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    fake_server.rejected = frozenset({"headrace.worker", "headrace.state"})
    copied(make_tool(), script, [], batch=50)
    same(points(fake_server), table(script), LARGEST)


def test_what_a_proxy_rejects_for_a_moment_is_not_left_out(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    """A 400 that is not MLflow's own: for a while each request is refused, also those of one value."""
    refused = iter(range(40))

    def fail(when: str, call: str) -> None:
        if call == "log_batch" and when == "before" and next(refused, None) is not None:
            raise MlflowException("API request failed with error code 400 != 200.")

    fake_server.fail = fail
    said: list[str] = []
    outages = 0
    while True:
        try:
            copied(make_tool(), script, said, batch=50)
            break
        except AwayError:
            outages += 1
    assert 1 < outages <= 40
    same(points(fake_server), table(script), LARGEST)
    assert not [line for line in said if "left out" in line]


def test_forbidden_names_are_listed_although_the_command_starts_again(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    sink = RunsSink(make_tool().open(info(script), print, Start.RESUME))
    for update in updates(script, batch=1):
        write_all(sink, [update])
        if any(run.tags["headrace.trial"] == "1" for run in fake_server.runs.values()):
            break  # trial 1 reports the names later
    run = fake_server.run_of(1)
    run.tags["headrace.renamed"] = "a_u40_b = a@b"
    copied(make_tool(), script, [])
    assert "a_u40_b = a@b" in run.tags["headrace.renamed"].split("; ")
    assert len(run.tags["headrace.renamed"].split("; ")) > 1


def test_a_server_that_takes_nothing_loses_nothing(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    """A proxy that answers 400 to everything is an outage, and no reason to leave anything out for good."""

    def fail(when: str, call: str) -> None:
        if call == "log_batch" and when == "before":
            raise MlflowException("API request failed with error code 400 != 200.")

    fake_server.fail = fail
    sink = RunsSink(make_tool().open(info(script), print, Start.RESUME))
    with pytest.raises(AwayError):
        write_all(sink, updates(script))
    fake_server.fail = lambda *_: None
    copied(make_tool(), script, [])
    same(points(fake_server), table(script), LARGEST)


def test_a_text_that_no_database_takes_is_written_without_it(
    fake_server: FakeServer, make_tool: MakeTool
) -> None:
    script = story()
    for event in script.events:
        if event.HasField("trial_created"):
            event.trial_created.parameters.values["optimizer"].string_value = "a\0b"
    copied(make_tool(), script, [])
    assert fake_server.run_of(0).params["optimizer"] == "a\N{REPLACEMENT CHARACTER}b"


def test_no_error_shows_the_password_of_the_uri(
    fake_server: FakeServer, make_tool: MakeTool, script: Script
) -> None:
    from headrace.track.mlflow_runs import MlflowTool

    uri = "http://user:s3cret@double:5000/path?key=s3cret"
    tool = MlflowTool(uri)
    assert tool.title == "MLflow at http://double:5000/path"

    def fail(when: str, call: str) -> None:
        raise error

    fake_server.fail = fail
    for code in ("INTERNAL_ERROR", "INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED"):
        error: Exception = MlflowException(f"API request to {uri} failed with exception x.", code)
        with pytest.raises(HeadraceError) as caught:
            tool.open(info(script), print, Start.RESUME)
        assert "s3cret" not in str(caught.value)
        assert "API request to http" in str(caught.value)
    error = ValueError(f"what is {uri}?")
    with pytest.raises(AwayError, match="no usable answer: ValueError") as caught:
        tool.open(info(script), print, Start.RESUME)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("lost", [3, 300])
def test_a_restored_study_gets_an_experiment_of_its_own(
    fake_server: FakeServer, make_tool: MakeTool, script: Script, lost: int
) -> None:
    """Runs are further than the experiment's position says, so those count as well."""
    sink = RunsSink(make_tool().open(info(script), print, Start.RESUME))
    write_all(sink, updates(script))  # it is killed before it is closed
    restored = cut(lost)
    runs = make_tool().open(info(restored), print, Start.RESUME)
    assert runs.newest > info(restored).cursor
    sink = RunsSink(make_tool().open(info(restored), print, Start.SET_ASIDE))
    write_all(sink, updates(restored))
    copied(make_tool(), restored, [])
    old, new = fake_server.experiments.values()
    assert old.name.startswith("digits until event ")
    assert new.name == "digits"
    for run in list(fake_server.runs.values()):
        if run.experiment_id == old.experiment_id:
            run.stage = "deleted"
    same(points(fake_server), table(restored), LARGEST)


def test_each_run_links_to_its_trial(fake_server: FakeServer, make_tool: MakeTool, script: Script) -> None:
    target = RunsTarget(make_tool(), "https://tune.example.com")
    sink = target.open(info(script), print, Start.RESUME)
    for update in updates(script):
        sink.write(update)
    sink.close(ended=True)
    assert len(fake_server.runs) == 28
    for run in fake_server.runs.values():
        trial = run.tags["headrace.trial"]
        page = f"https://tune.example.com/studies/{info(script).name}/trials/{trial}"
        assert run.tags["headrace.console"] == page
