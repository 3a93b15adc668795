"""`headrace track` and `headrace up --track`: options, messages, and one copy from end to end."""

import json
from pathlib import Path

import pytest
from commands_run import Invoke
from copied_study import same, table
from fake_mlflow import LARGEST, FakeServer
from fake_study_service import FakeStudyService
from scripted_study import Script
from test_track_mlflow import points

from headrace.track.targets import Destination, TargetInUseError, locked, parse
from headrace_services.identity.permissions import PERMISSIONS, Permission
from headrace_services.up.children import Options, children


def test_a_study_is_copied_to_mlflow(
    fake_server: FakeServer, service: FakeStudyService, invoke: Invoke, script: Script
) -> None:
    result = invoke("track", "digits", "--to", "mlflow=http://double")
    assert result.code == 0, result.err
    assert result.out == "digits (completed): 28 trials exported to MLflow at http://double\n"
    assert "'loss@val'" in result.err
    same(points(fake_server), table(script), LARGEST)
    again = invoke("track", "digits", "--to", "mlflow=http://double", "--json")
    assert json.loads(again.out) == {
        "type": "tracked",
        "study": "digits",
        "state": "completed",
        "trials": 28,
        "to": "MLflow at http://double",
        "cursor": len(script.events),
    }
    same(points(fake_server), table(script), LARGEST)


def test_only_reading_calls_are_made(
    fake_server: FakeServer, service: FakeStudyService, invoke: Invoke
) -> None:
    """So a viewer's token is enough, and a slow tracker slows no trial."""
    invoke("track", "digits", "--to", "mlflow=http://double")
    assert {"GetStudy", "WatchStudy"} <= set(service.requests)
    for call in (*service.requests, "ListStudies", "ListTrials", "ListReports"):
        assert PERMISSIONS[f"/headrace.v1.StudyService/{call}"].permission is Permission.LOOK


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option"),
        (["--to", "mlflow=http://x"], "Give a study or --all."),
        (["digits", "--all", "--to", "mlflow=http://x"], "Give a study or --all, not both."),
        (["digits", "--to", "neptune"], "--to: names no tool: those are mlflow, wandb, tensorboard, webhook"),
        (["digits", "--to", "mlflow"], "--to: has no URI"),
        (["digits", "--to", "webhook=example.com"], "--to: is no http or https URL"),
        (["digits", "--to", "webhook=https://example.com"], "HEADRACE_WEBHOOK_SECRET: needs a key"),
        (
            ["digits", "--to", "mlflow=http://user:s3cret@m:99999"],
            "--to: has a port that is no number from 0 to 65535 (got http://…@m:99999). Write mlflow=http://HOST:PORT",
        ),
        (["digits", "--to", "mlflow=http://[::1"], "--to: is not a URL (got http://[::1). Write mlflow="),
        (
            ["digits", "--to", "mlflow=http://"],
            "--to: has no host (got http://). Write mlflow=http://HOST:PORT",
        ),
        (
            ["digits", "--to", "mlflow=foo://user:s3cret@m"],
            "(got foo://…@m). Write mlflow=http://HOST:PORT",
        ),
        (
            ["digits", "--to", "webhook=https://h:99999/s3cret"],
            "--to: has a port that is no number from 0 to 65535 (got webhook=…).",
        ),
        (["digits", "--to", "webhook=https://h:x/s3cret"], "--to: has a port that is no number"),
        (
            ["digits", "--to", "webhook=https://h/s3cret b"],
            "--to: contains a space or a character that is not ASCII",
        ),
        (
            ["digits", "--to", "webhook=https://h/s3crét"],
            "--to: contains a space or a character that is not ASCII",
        ),
        (["digits", "--to", "mlflow=http://user:s3cret/x@m"], "--to: has a port that is no number"),
        (["digits", "--to", "webhook=https://user:s3cret/x@h"], "--to: has a port that is no number"),
        (["digits", "--to", "webhook=https://bob:s3cret@h/x"], "--to: contains a user name or a password"),
        (["digits", "--to", "webhok=https://h/?key=s3cret"], "--to: names no tool"),
    ],
)
def test_bad_options_are_named(
    fake_server: FakeServer,
    service: FakeStudyService,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "HEADRACE_WEBHOOK_SECRET", "HEADRACE_WEBHOOK_URL"):
        monkeypatch.delenv(name, raising=False)
    result = invoke("track", *arguments)
    assert result.code == 2
    said = " ".join(result.err.split())
    assert words in said
    assert "s3cr" not in said
    assert service.requests.keys() <= {"GetStudy"}
    assert not fake_server.calls


def test_a_missing_extra_is_named(
    service: FakeStudyService, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.client.missing.find_spec", lambda _: None)
    result = invoke("track", "digits", "--to", "tensorboard")
    assert result.code == 1
    assert (
        "`headrace track --to tensorboard` needs packages that are not installed: tensorboard." in result.err
    )
    assert "pip install 'headrace[tensorboard]'" in result.err


def test_a_study_that_does_not_exist_is_an_error(
    fake_server: FakeServer, service: FakeStudyService, invoke: Invoke
) -> None:
    result = invoke("track", "digit", "--to", "mlflow=http://double")
    assert result.code == 1
    assert "There is no study digit" in result.err
    assert not fake_server.calls


def test_two_exporters_of_a_home_do_not_write_to_one_place(
    service: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = Destination("tensorboard", "/runs")
    with locked(destination):
        with (
            pytest.raises(TargetInUseError, match="copies the same with tensorboard to the same place"),
            locked(destination),
        ):
            pytest.fail("held twice")
        with locked(Destination("tensorboard", "/other")), locked(destination, "of another project"):
            pass
        with pytest.raises(TargetInUseError), locked(destination, shared=True):
            pytest.fail("a study beside all studies")
    with locked(destination, shared=True), locked(destination, shared=True):
        pass
    with locked(destination):
        pass


def test_where_a_tool_is_by_default(
    fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headrace.track.targets.require", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    assert parse("mlflow", {"MLFLOW_TRACKING_URI": "http://m"}).where == "http://m"
    assert parse("tensorboard", {}).where == str(tmp_path / "runs")
    assert parse("wandb", {"WANDB_DIR": "w"}).where == str(tmp_path / "w")
    assert parse("wandb", {}).where == str(tmp_path)
    assert parse("mlflow=http://a?b=c", {}).arguments() == ("mlflow", {"MLFLOW_TRACKING_URI": "http://a?b=c"})
    webhook = {"HEADRACE_WEBHOOK_URL": "https://h/key", "HEADRACE_WEBHOOK_SECRET": "0123456789abcdef"}
    assert parse("webhook", webhook).arguments() == ("webhook", {"HEADRACE_WEBHOOK_URL": "https://h/key"})
    assert parse("wandb=/w", {}).arguments() == ("wandb=/w", {})


def test_up_runs_an_exporter_for_each_target(tmp_path: Path) -> None:
    options = Options(
        home=tmp_path,
        ports=(7440,),
        database_url="postgresql://x/y",
        track=(("mlflow", {"MLFLOW_TRACKING_URI": "http://m"}), ("wandb=/w", {})),
    )
    specs = {spec.name: spec for spec in children(options)}
    assert list(specs) == ["scheduler", "worker", "track-1", "track-2"]
    command = specs["track-1"].command[3:]
    assert command == ("track", "--all", "--to", "mlflow", "--address", "127.0.0.1:7440")
    assert specs["track-1"].env["MLFLOW_TRACKING_URI"] == "http://m"
    assert specs["track-1"].longest_pause_s > 10
    (one,) = [
        spec
        for spec in children(
            Options(home=tmp_path, ports=(7440,), database_url="postgresql://x/y", track=(("wandb=/w", {}),))
        )
        if spec.name.startswith("track")
    ]
    assert one.name == "track"
