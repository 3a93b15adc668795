"""The probe of containers: a health check over TLS, against a real scheduler's kind of server."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from headrace_services.identity import authority
from headrace_services.serving.ask import serves

HOST = "headrace-scheduler"


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    authority.make(tmp_path / "ca", [HOST], now=datetime.now(UTC))
    return tmp_path / "ca"


@pytest.fixture
def server(ca: Path) -> Iterator[tuple[int, health.HealthServicer]]:
    found = authority.load(ca)
    server = grpc.server(ThreadPoolExecutor(2))
    answers = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(answers, server)
    shown = grpc.ssl_server_credentials([(found.server_key_pem, found.server_pem)])
    port = server.add_secure_port("127.0.0.1:0", shown)
    server.start()
    yield port, answers
    server.stop(None).wait()


def test_it_serves_by_the_name_of_its_certificate(
    server: tuple[int, health.HealthServicer], ca: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port, answers = server
    assert serves(port, ca / "ca.pem", HOST)
    answers.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert not serves(port, ca / "ca.pem", HOST)
    assert not serves(port, ca / "ca.pem", "another")
    assert not serves(port)
    assert capfd.readouterr().err, "why, for `kubectl describe`"


def test_the_programs_exit_status(server: tuple[int, health.HealthServicer], ca: Path) -> None:
    port, _ = server
    line = [sys.executable, "-m", "headrace_services.serving.ask"]
    assert subprocess.run([*line, str(port), str(ca / "ca.pem"), HOST], check=False).returncode == 0
    assert subprocess.run([*line, "1"], check=False, capture_output=True).returncode == 1
