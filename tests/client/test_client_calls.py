"""The blocking client against a scripted service: what is sent, what comes back, and what happens in between."""

import inspect
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import grpc
import numpy as np
import pytest
from fake_study_service import FakeStudyService
from scripted_study import RUNGS, Script, params_of, race, spec

import headrace
from headrace import AsyncClient, Client
from headrace.client import (
    AskedTrial,
    AsyncStudy,
    Retried,
    Study,
    StudyState,
    TerminationReason,
    TrialRef,
    TrialState,
    connection,
    study_flows,
)
from headrace.client.events import EventDetail
from headrace.client.flows import PAGE_SIZE
from headrace.elsewhere import ASKED, MODULE, STUDY
from headrace.errors import (
    DatabaseUnavailableError,
    DrainingError,
    HeadraceError,
    InvalidFieldError,
    StudyEndedError,
    StudyExistsError,
    StudyNotEndedError,
    StudyNotFoundError,
    TrialNotFoundError,
    UnreachableError,
)
from headrace.target import Target
from headrace.v1 import study_pb2

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def test_every_kind_of_event_can_be_imported_from_the_client() -> None:
    kinds = {kind.__name__ for kind in get_args(EventDetail)}
    assert kinds - set(headrace.client.__all__) == set()


def test_a_study_is_created_from_a_spec_and_read_back(client: Client, fake: FakeStudyService) -> None:
    study = client.create_study("first", spec())
    assert study.name == "first"
    assert fake.requests["CreateStudy"][0].spec.max_trials == 27
    info = study.status()
    assert info.spec == spec()
    assert info.state is StudyState.COMPLETED


def test_a_study_file_may_bring_the_name(client: Client, fake: FakeStudyService, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(
        "name: from-file\nobjective: {metric: loss, goal: minimize}\n"
        "space: {lr: {type: float, low: 0.1, high: 1.0}}\ntrials: 3\nsteps: 9\n"
    )
    assert client.create_study(None, file).name == "from-file"
    assert client.create_study("mine", str(file)).name == "mine"


NOWHERE: Any = None


@pytest.mark.parametrize(
    ("owner", "name", "hint"),
    [
        (headrace, "tune", r"`from headrace import trial` .* docs/how-to/coming-from-ray-tune.md$"),
        (Study(NOWHERE, "a").best, "params", r"^best is a method: write best\(\).params$"),
        (Study(NOWHERE, "a").status, "state", r"^status is a method: write status\(\).state$"),
        (AsyncStudy(NOWHERE, "a").best, "params", r"write \(await best\(\)\).params$"),
        (headrace, "create_study", r"Client\(\).create_study\(name, spec\)"),
        (Study(NOWHERE, "a"), "best_params", r"^Study has no attribute 'best_params': use best\(\).params"),
        (Study(NOWHERE, "a"), "optimize", "ask_all"),
        (AsyncStudy(NOWHERE, "a"), "enqueue_trial", "AsyncStudy .* add_trials"),
        (Study(NOWHERE, "a"), "colour", "^Study has no attribute 'colour'$"),
        (AskedTrial(NOWHERE, NOWHERE), "suggest_float", r"AskedTrial .* params\['NAME'\]"),
        (AskedTrial(NOWHERE, NOWHERE), "tell", r"report\(step, NAME=value\)"),
    ],
)
def test_a_name_of_another_tuner_says_what_it_is_here(owner: Any, name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=hint):
        getattr(owner, name)


def test_a_module_of_another_tuner_says_what_it_is_here() -> None:
    for how in ("from headrace import tune", "import headrace.tune", "from headrace.tune import report"):
        with pytest.raises(ImportError, match=r"coming-from-ray-tune"):
            exec(how, {})


def test_a_method_of_a_handle_is_one_to_python() -> None:
    best = Study(NOWHERE, "a").best
    assert callable(best)
    assert best.__name__ == "best"
    assert best.__doc__ == study_flows.best.__doc__
    assert not inspect.signature(best).parameters
    parameters = list(inspect.signature(Study(NOWHERE, "a").trials).parameters)
    assert parameters == ["states", "filter", "order_by"]
    assert inspect.iscoroutinefunction(AsyncStudy(NOWHERE, "a").best)


def test_no_hint_hides_a_name_of_ours() -> None:
    for owner, table in ((headrace, MODULE), (Study, STUDY), (AskedTrial, ASKED)):
        assert not [name for name in table if name in dir(owner)]


def test_what_is_no_spec_and_no_name_is_reported(client: Client, fake: FakeStudyService) -> None:
    with pytest.raises(InvalidFieldError, match=r"(?m)^trials: is required"):
        client.create_study("digits", {"objective": {"metric": "loss", "goal": "minimize"}})
    data: Any = 3
    with pytest.raises(InvalidFieldError, match=r"spec: is neither .*keys of a study file"):
        client.create_study("digits", data)
    with pytest.raises(InvalidFieldError, match=r"spec: is neither"):
        client.preview(data)
    for name in (None, "Digits"):
        with pytest.raises(InvalidFieldError, match=r"^name: invalid study name .*: use lower-case"):
            client.create_study(name, spec())
    assert not fake.requests["CreateStudy"]


def test_a_study_has_its_figures(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    info = client.study("digits").status()
    assert info.counts.total == 28
    assert (info.counts.completed, info.counts.stopped_early, info.counts.failed) == (4, 23, 1)
    assert [rung.milestone for rung in info.rungs] == list(RUNGS)
    assert info.baseline is not None
    assert info.baseline.params == params_of(0)
    assert info.best is not None
    assert info.best.number == 22
    assert info.best.best_step == 27
    assert info.created is not None
    assert info.created.tzinfo is not None
    assert client.study("studies/digits").best() == info.best


def test_parameters_come_in_the_order_of_the_space(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    trials = client.study("digits").trials()
    assert list(trials[3].params) == ["optimizer", "lr", "width", "momentum"]
    assert trials[3].params == params_of(3)
    assert type(trials[3].params["width"]) is int
    assert list(trials[2].params) == ["optimizer", "lr", "width"]


def test_trials_are_read_over_all_pages(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.page_size = 5
    assert [trial.number for trial in client.study("digits").trials()] == list(range(28))
    assert len(client.study("digits").reports()) == len(script.reports)
    assert [request.page_size for request in fake.requests["ListTrials"]] == [PAGE_SIZE] * 6


def test_trials_by_state(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=len(script.events) // 2)
    paused = client.study("digits").trials(states=[TrialState.PAUSED])
    assert paused
    assert {trial.state for trial in paused} == {TrialState.PAUSED}


def test_a_trial_tells_its_story(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    trial = client.study("digits").trial(5)
    story = trial.explain()
    why = story.decisions[0]
    assert (why.rule, why.milestone, why.results) == ("asha_promotion", 1, 5)
    assert why.slot_goes_to == TrialRef("digits", 6)
    assert trial.info().reason is TerminationReason.STOPPED_EARLY
    assert trial.log_path() == Path("/var/log/headrace/5.log")
    assert [report.step for report in trial.reports()] == [1]


def test_a_value_that_is_absent_is_none_and_nan_is_nan(client: Client, fake: FakeStudyService) -> None:
    script = race("odd", trials=1)
    trial = script.final.trials[1]
    trial.rung_results.add(rung=9, milestone=99, value=math.nan)
    trial.rung_results.add(rung=10, milestone=199)
    trial.ClearField("checkpoint")
    fake.add(script)
    info = client.study("odd").trial(1).info()
    assert info.rungs[-2].value is not None
    assert math.isnan(info.rungs[-2].value)
    assert info.rungs[-1].value is None
    assert info.checkpoint is None
    assert info.worker is None


def test_studies_workers_and_previews(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.add(race("another", trials=3))
    fake.page_size = 1
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True)
    worker.slots.add(index=0, device="cpu", trial="studies/digits/trials/4")
    worker.slots.add(index=1, device="cpu")
    fake.workers.append(worker)
    assert {study.name for study in client.studies()} == {"digits", "another"}
    slots = client.workers()[0].slots
    assert [slot.trial for slot in slots] == [TrialRef("digits", 4), None]
    plan = client.preview(spec(), slots=4, seconds_per_step=2.0)
    assert (plan.trials, plan.steps, plan.slots) == (27, 143, 4)
    assert plan.wall_time_s == pytest.approx(71.5)
    assert client.preview(spec()).wall_time_s is None


def test_added_trials_keep_their_types(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    added = client.study("digits").add_trials([{"lr": 1.0, "width": 64, "optimizer": "adam", "flag": True}])
    assert added[0].params == {"flag": True, "lr": 1.0, "optimizer": "adam", "width": 64}
    assert [type(value) for value in added[0].params.values()] == [bool, float, str, int]


def test_trials_are_tried_again_and_studies_extended(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    study = client.study("digits")
    assert study.retry() == Retried(trials=(3, 5), others=2)
    assert study.retry(4).trials == (4,)
    assert study.retry([1, 2]).trials == (1, 2)
    assert study.extend(trials=5).spec.max_trials == study.status().spec.max_trials + 5
    study.extend(steps=81)
    assert [(one.trials, one.steps) for one in fake.requests["ExtendStudy"]] == [(5, 0), (0, 81)]


def test_numbers_of_the_wrong_type_are_named_and_numpys_are_numbers(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    study: Any = client.study("digits")
    anything: Any = client
    calls: list[tuple[str, Callable[[Any], object]]] = [
        ("steps", lambda wrong: study.extend(steps=wrong)),
        ("trials", lambda wrong: study.extend(trials=wrong)),
        ("steps", lambda wrong: study.extension_warnings(steps=wrong)),
        ("trials", lambda wrong: study.retry(wrong)),
        ("trials", lambda wrong: study.retry([wrong])),
        ("trial", lambda wrong: study.trial(wrong)),
        ("after", lambda wrong: next(study.watch(wrong))),
        ("timeout_s", lambda wrong: study.wait(wrong)),
        ("timeout_s", lambda wrong: study.ask(timeout_s=wrong)),
        ("lease_s", lambda wrong: study.ask(lease_s=wrong)),
        ("slots", lambda wrong: anything.preview(spec(), slots=wrong)),
        ("seconds_per_step", lambda wrong: anything.preview(spec(), seconds_per_step=wrong)),
        ("grace_s", lambda wrong: anything.drain("w", grace_s=wrong)),
        ("devices", lambda wrong: anything.cordon("w", [wrong])),
        ("slots", lambda wrong: anything.create_project("p", slots=wrong)),
        ("studies", lambda wrong: anything.set_project("p", studies=wrong)),
        ("timeout_s", lambda wrong: Client("h:1", timeout_s=wrong)),
        ("timeout_s", lambda wrong: anything.run(len, {}, trials=1, minimize="loss", timeout_s=wrong)),
    ]
    for field, call in calls:
        for wrong in ("9", True, [[1]], float("nan"), object()):
            with pytest.raises(InvalidFieldError) as raised:
                call(wrong)
            (violation,) = raised.value.violations
            assert (violation.field, bool(violation.value), bool(violation.remedy)) == (field, True, True)
    for wrong in (1.5, 1 << 63):
        with pytest.raises(InvalidFieldError, match="is not a whole number"):
            study.extend(steps=wrong)
    with pytest.raises(InvalidFieldError, match="below 0"):
        study.retry([-1])
    study.extend(steps=np.int32(9))
    study.extend(trials=np.uint8(3))
    study.retry(np.int64(3))
    study.retry(np.array([3, 5]))
    assert [(one.trials, one.steps) for one in fake.requests["ExtendStudy"]] == [
        (0, 9),
        (3, 0),
    ]
    assert [list(one.trial_numbers) for one in fake.requests["RetryTrials"]] == [[3], [3, 5]]
    with pytest.raises(InvalidFieldError, match=r"params\[1\].lr"):
        study.add_trials([{"lr": 0.1}, {"lr": [0.1]}])
    numbers = {
        "lr": np.float32(0.5),
        "width": np.int64(64),
        "optimizer": np.str_("adam"),
        "flag": np.bool_(True),
    }
    params = study.add_trials([numbers])[0].params
    assert params == {"flag": True, "lr": 0.5, "optimizer": "adam", "width": 64}
    assert [type(value) for value in params.values()] == [bool, float, str, int]


def test_a_failed_call_is_made_again_with_the_same_request_id(client: Client, fake: FakeStudyService) -> None:
    fake.fail_next("CreateStudy", UNAVAILABLE, DrainingError("Going away."))
    fake.fail_next("CreateStudy", grpc.StatusCode.DEADLINE_EXCEEDED, after=True)
    client.create_study("again", spec())
    requests = fake.requests["CreateStudy"]
    assert len(requests) == 4
    assert len({request.request_id for request in requests}) == 1
    assert requests[0].request_id


def test_two_operations_have_two_request_ids(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    client.study("digits").stop()
    client.study("digits").stop(reason="enough")
    first, second = fake.requests["StopStudy"]
    assert first.request_id != second.request_id
    assert second.reason == "enough"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (StudyNotFoundError("There is no study x."), StudyNotFoundError),
        (InvalidFieldError([]), InvalidFieldError),
        (grpc.StatusCode.PERMISSION_DENIED, HeadraceError),
    ],
)
def test_other_errors_are_raised_at_once(
    client: Client, fake: FakeStudyService, script: Script, error: object, raised: type[HeadraceError]
) -> None:
    fake.add(script)
    fake.fail_next("GetStudy", error)  # type: ignore[arg-type]
    with pytest.raises(raised):
        client.study("digits").status()
    assert len(fake.requests["GetStudy"]) == 1


def test_errors_are_the_servers_own_with_message_and_remedy(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    with pytest.raises(StudyNotFoundError, match="no study nope") as caught:
        client.study("nope").status()
    assert "headrace studies" in caught.value.remedy
    fake.add(script, shown=10)
    with pytest.raises(TrialNotFoundError):
        client.study("digits").trial(99).info()
    with pytest.raises(StudyExistsError):
        client.create_study("digits", spec())
    with pytest.raises(StudyNotEndedError):
        client.study("digits").delete()
    fake.shown["studies/digits"] = len(script.events)
    with pytest.raises(StudyEndedError):
        client.study("digits").pause()


@pytest.mark.timeout(120)
def test_an_unreachable_scheduler_is_told_soon_and_by_address() -> None:
    with (
        Client("127.0.0.1:1", timeout_s=600, connect_timeout_s=0.5) as client,
        pytest.raises(UnreachableError) as caught,
    ):
        client.studies()
    assert "127.0.0.1:1" in caught.value.message
    assert "headrace up" in caught.value.remedy


def test_a_scheduler_that_was_there_is_waited_for(
    fake: FakeStudyService, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add(script)
    with Client(fake.address, timeout_s=60, connect_timeout_s=0.1) as client:
        client.studies()
        fake.fail_next("GetStudy", *[DatabaseUnavailableError("Postgres is away.")] * 2)
        assert client.study("digits").status().name == "digits"
        fake.fail_next("GetStudy", *[DatabaseUnavailableError("Postgres is away.")] * 50)
        late = SimpleNamespace(monotonic=lambda: time.monotonic() + 60)
        monkeypatch.setattr(connection, "time", late)
        with pytest.raises(DatabaseUnavailableError):
            client.study("digits").status()


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADRACE_ADDRESS", raising=False)
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Target.of(None).address == "127.0.0.1:7440"
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    (tmp_path / "address").write_text("127.0.0.1:7001,127.0.0.1:7002\n")
    assert Target.of(None).replicas == ("127.0.0.1:7001", "127.0.0.1:7002")
    monkeypatch.setenv("HEADRACE_ADDRESS", "tls://scheduler:443")
    assert Target.of(None) == Target(replicas=("scheduler:443",), tls=True)
    assert Target.of("tls://a:1, tls://b:2") == Target(replicas=("a:1", "b:2"), tls=True)
    assert Target.of("[::1]:7440,localhost:7441").replicas == ("[::1]:7440", "localhost:7441")
    for alone in ("10.0.0.1:1", "unix:/run/x.sock", "ipv4:10.0.0.1:1,10.0.0.2:2", "dns:///scheduler:1"):
        assert Target.of(alone).replicas == (alone,)


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("not an address", "HOST:PORT"),
        ("scheduler", "HOST:PORT"),
        ("scheduler:", "HOST:PORT"),
        ("scheduler:99999", "HOST:PORT"),
        ("scheduler:0", "HOST:PORT"),
        (",", "HOST:PORT"),
        ("a:1,b", "HOST:PORT"),
        ("a:1,tls://b:2", "before the first"),
        ("::1:7440", r"\[::1\]:7440"),
        ("http://a:1", "HOST:PORT"),
        ("\x00:1", "HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused(address: str, remedy: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"is not an address.*{remedy}"):
        Target.of(address)


def test_of_several_schedulers_the_next_one_answers(fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    with Client(f"127.0.0.1:1,{fake.address}", timeout_s=60) as client:
        assert client.study("digits").status().name == "digits"


def test_trials_are_chosen_by_the_words_that_the_commands_show(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    study = client.study("digits")
    every = study.trials()
    for words in (
        "failed",
        ("failed",),
        (TerminationReason.FAILED, TrialState.PAUSED),
        ("terminated", "failed"),
    ):
        chosen = {words} if isinstance(words, str) else set(words)
        expected = [trial.number for trial in every if {trial.state, trial.reason} & chosen]
        assert [trial.number for trial in study.trials(words)] == expected != []
    with pytest.raises(InvalidFieldError, match=r"states: .*nonsense.*stopped_early"):
        study.trials(("failed", "nonsense"))


def test_configurations_that_are_no_list_of_mappings_are_refused(
    client: Client, fake: FakeStudyService
) -> None:
    study = client.study("digits")
    for wrong in ({"lr": 0.1}, [0.1], 0.1):
        with pytest.raises(InvalidFieldError, match=r"params: is not a list of configurations"):
            study.add_trials(wrong)  # type: ignore[arg-type]
    assert not fake.requests["AddTrials"]


def test_an_error_of_the_server_ends_at_the_users_call(client: Client, fake: FakeStudyService) -> None:
    with pytest.raises(StudyNotFoundError) as caught:
        client.study("nope").status()
    assert len(caught.traceback) == 2  # the call here, and the method
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def _calls(client: Client) -> dict[str, Callable[[], object]]:
    study = client.study("nope")
    return {
        "studies": client.studies,
        "create": lambda: client.create_study("digits", spec()),
        "status": study.status,
        "ask": study.ask,
        "ask_all": lambda: list(study.ask_all()),
        "wait": study.wait,
    }


@pytest.mark.parametrize("call", ["studies", "create", "status", "ask", "ask_all", "wait"])
def test_an_error_of_a_server_that_is_not_there_ends_at_the_users_call(call: str) -> None:
    with Client("127.0.0.1:1", connect_timeout_s=0.1) as client:
        calling = _calls(client)[call]
        with pytest.raises(UnreachableError) as caught:
            calling()
    own = [entry for entry in caught.traceback if Path(headrace.__file__).parent in entry.path.parents]
    assert len(own) <= 2, own  # the method, and one that it calls
    assert caught.value.__suppress_context__


def test_a_watch_that_finds_no_study_ends_at_the_users_loop(client: Client, fake: FakeStudyService) -> None:
    with pytest.raises(StudyNotFoundError) as caught:
        list(client.study("nope").watch())
    assert len(caught.traceback) == 1, caught.traceback


@pytest.mark.parametrize("call", ["studies", "status", "ask", "wait"])
async def test_an_error_of_an_async_call_ends_at_the_users_await(call: str) -> None:
    async with AsyncClient("127.0.0.1:1", connect_timeout_s=0.1) as client:
        study = client.study("nope")
        with pytest.raises(UnreachableError) as caught:
            await (client.studies() if call == "studies" else getattr(study, call)())
    own = [entry for entry in caught.traceback if Path(headrace.__file__).parent in entry.path.parents]
    assert len(own) <= 3, own  # of wait: the method, its clock and the status that it requests


def test_what_a_notebook_shows_of_studies_and_trials_is_a_line(
    client: Client, fake: FakeStudyService
) -> None:
    fake.add(race("digits"))
    study = client.study("digits")
    shown = repr(study.status())
    assert shown.startswith("<StudyInfo digits: completed, 28 trials, 1 failed, best trial 22 "), shown
    trials = study.trials()
    assert repr(trials[0]).startswith("<TrialInfo digits/0: ")
    assert str(dict(trials[0].params)) in repr(trials[0])
    assert max(len(repr(trial)) for trial in trials) < 200
