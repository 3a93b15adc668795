"""The metrics of a scheduler: everything that the dashboard and the alert rules name, and no study's name."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headrace import Client
from headrace.errors import HeadraceError, InvalidFieldError, StudyNotFoundError
from headrace.scraping import NAMED_IN, parse_listen, scraped
from headrace_services.monitoring.registry import REGISTRY

SERVING, METRICS = "headrace scheduler: serving on ", "headrace scheduler: metrics at "
SECRET = "a-name-that-no-label-shows"
SPEC = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"x": {"type": "float", "low": 0, "high": 1}},
    "policy": {"kind": "run_all"},
    "trials": 2,
    "steps": 3,
}
FOLDER = files("headrace_services.monitoring")
_NAME = re.compile(r"\b(?:headrace|rpc|db_client|process|python)_[a-z_]+\b(?!\s*=)")
_LABELS = {"rpc_method", "rpc_response_status_code", "db_client_connection_state", "python_version"}


@dataclass
class Service:
    """A scheduler that shows metrics."""

    address: str
    metrics: str
    database_url: str

    def text(self) -> str:
        with urllib.request.urlopen(self.metrics, timeout=10) as answer:
            return answer.read().decode()

    def samples(self) -> dict[str, list[Any]]:
        """The samples by name."""
        found: dict[str, list[Any]] = {}
        for family in text_string_to_metric_families(self.text()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample)
        return found


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", database_url]
    command += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip().removeprefix(SERVING)
        metrics = process.stdout.readline().strip().removeprefix(METRICS)
        yield Service(address, metrics, database_url)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def named(expression: str) -> set[str]:
    """The metrics that a PromQL expression names."""
    return set(_NAME.findall(expression)) - _LABELS


def expressions() -> dict[str, str]:
    """Every expression of the dashboard and of the alerts, by its place."""
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    alerts = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel["targets"]
    }
    return found | {rule["alert"]: rule["expr"] for group in alerts["groups"] for rule in group["rules"]}


def test_a_real_scheduler_shows_all_that_is_named_and_no_study(service: Service) -> None:
    with Client(service.address, timeout_s=60) as client:
        client.create_study(SECRET, SPEC)
        study = client.study(SECRET)
        trial = study.ask()
        assert trial is not None
        trial.report(1, loss=0.5)
        client.workers()
        with pytest.raises(StudyNotFoundError):
            client.study("no-such-study").status()
        info = client.server_info()
    assert f"http://{info.metrics}/metrics" == service.metrics
    assert info.database_schema == info.program_schema
    text = service.text()
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    shown |= {f"{name}{end}" for name in shown for end in ("_bucket", "_count", "_sum")}
    every = expressions()
    assert len(every) > 40
    for where, expression in every.items():
        assert named(expression) <= shown, where
    assert any(named(expression) for expression in every.values())
    assert SECRET not in text
    samples = service.samples()
    statuses = {
        (sample.labels["rpc_method"].rpartition("/")[2], sample.labels["rpc_response_status_code"])
        for sample in samples["rpc_server_call_duration_seconds_count"]
    }
    assert {("CreateStudy", "OK"), ("GetStudy", "NOT_FOUND"), ("ListWorkers", "OK")} <= statuses
    assert sum(sample.value for sample in samples["headrace_cycle_duration_seconds_count"]) >= 2
    revisions = {sample.labels["of"]: sample.value for sample in samples["headrace_schema_revision"]}
    assert revisions["database"] == revisions["program"] > 0
    (moved,) = [one for one in samples["headrace_trial_moves_total"] if one.labels["state"] == "running"]
    assert moved.value >= 1


@pytest.mark.full
def test_a_scrape_is_answered_while_the_database_is_away(service: Service, postgres_url: str) -> None:
    name = service.database_url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            with Client(service.address, timeout_s=2) as client, pytest.raises(HeadraceError):
                client.workers()
            (away,) = [
                sample
                for sample in service.samples()["headrace_database_errors_total"]
                if sample.labels["kind"] == "away"
            ]
            assert away.value >= 1
        finally:
            conn.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def test_a_taken_port_and_a_malformed_address_are_refused() -> None:
    with scraped("127.0.0.1:0", REGISTRY) as shown:
        taken = pytest.raises(HeadraceError, match=f"cannot show metrics on {shown}: Address already in use")
        with taken, scraped(shown, REGISTRY):
            pass
    with scraped("", REGISTRY) as shown:
        assert not shown
    for wrong in ("9440", ":9440", "127.0.0.1:http", "127.0.0.1:99999"):
        with pytest.raises(InvalidFieldError, match="--metrics-listen"):
            parse_listen(wrong)


def status(address: str, **headers: str) -> int:
    """The status of a scrape. Only an admitted one gets metrics."""
    asked = urllib.request.Request(f"http://{address}/metrics", headers=headers)
    try:
        answer = urllib.request.urlopen(asked, timeout=60)
    except urllib.error.HTTPError as refused:
        answer = refused
    with answer:
        assert (b"process_" in answer.read()) is (answer.status == 200)
        return int(answer.status)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_where_a_token_is_asked_for_metrics_are_shown_to_nobody_else(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example to a trial on the worker's machine, which reaches every port of it."""
    (tmp_path / "token").write_text("s3cr3t\n")
    monkeypatch.setenv(NAMED_IN, str(tmp_path / "token"))
    with scraped(f"{host}:0", REGISTRY) as shown:
        assert status(shown, Authorization="Bearer s3cr3t") == 200
        for wrong in ("Bearer s3cr3", "Bearer s3cr3t ü", "s3cr3t", "Basic s3cr3t", ""):
            assert status(shown, Authorization=wrong) == 401, wrong
        assert status(shown) == 401
    monkeypatch.delenv(NAMED_IN)
    with scraped(f"{host}:0", REGISTRY) as shown:
        assert status(shown) == 200


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_token_that_is_not_there_shows_metrics_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    monkeypatch.setenv(NAMED_IN, str(tmp_path / "token"))
    with pytest.raises(InvalidFieldError, match="holds no token"), scraped("127.0.0.1:0", REGISTRY):
        pass
