"""The scheduler as a process: how it starts, how it refuses to start, and how it stops."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, lock_study, make_spec

from headrace.errors import InvalidFieldError
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.process import Settings, check
from headrace_services.scheduler.session.worker_session import Timing

SERVING = "headrace scheduler: serving on "
NOWHERE = "postgresql://nobody:secret@127.0.0.1:1/headrace"


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "headrace.cli", "scheduler", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refused(*arguments: str) -> str:
    out, err = start(*arguments).communicate(timeout=60)
    assert SERVING not in out
    return err


@pytest.mark.full
def test_an_unreachable_database_is_one_clear_line_and_a_failure() -> None:
    process = start("--database-url", NOWHERE, "--database-wait", "0", "--listen", "127.0.0.1:0")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    (line,) = err.strip().splitlines()
    assert "cannot reach Postgres at postgresql+psycopg://nobody:***@127.0.0.1:1/headrace" in line
    assert "--database-url" in line
    assert "secret" not in line


@pytest.mark.full
def test_another_kind_of_database_is_refused() -> None:
    err = refused("--database-url", "mysql://root@localhost/x", "--listen", "127.0.0.1:0")
    assert "database_url" in err
    assert "postgresql://" in err
    assert "Traceback" not in err


@pytest.mark.full
def test_a_taken_port_is_refused(database_url: str) -> None:
    server = start("--database-url", database_url, "--listen", "127.0.0.1:0")
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip().removeprefix(SERVING)
        err = refused("--database-url", database_url, "--listen", address)
        assert f"cannot listen on {address}" in err
        assert "Traceback" not in err
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode == 0


def test_health_and_reflection(database_url: str) -> None:
    server = start("--database-url", database_url, "--listen", "127.0.0.1:0")
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip().removeprefix(SERVING)
        with grpc.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            services = set(ProtoReflectionDescriptorDatabase(channel).get_services())
            assert {
                "headrace.v1.StudyService",
                "headrace.v1.WorkerService",
                "grpc.health.v1.Health",
            } <= services
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


async def test_a_drain_whose_time_is_over_stops_the_runners(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    async with engine.begin() as conn, asyncio.timeout(60):
        await lock_study(conn, site.study_id)  # no cycle can end
        async with asyncio.TaskGroup() as tasks:
            hub = Hub(engine, tasks)
            hub.kick(site.study_id)
            await asyncio.sleep(0.1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await hub.drain()


SAFE = Settings(database_url="postgresql://x/y")


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"listen": "0.0.0.0:7440"}, "--listen", "without TLS"),
        ({"listen": "10.0.0.7:7440"}, "--listen", "without TLS"),
        ({"listen": "7440"}, "--listen", "HOST:PORT"),
        ({"listen": "127.0.0.1:99999"}, "--listen", "HOST:PORT"),
        ({"tls_cert": Path("c.pem")}, "--tls-cert", "--tls-key"),
        ({"timing": Timing(heartbeat_s=3, lease_ttl_s=5)}, "--lease-ttl", "two heartbeats"),
    ],
)
def test_unsafe_settings_are_refused(changes: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(InvalidFieldError) as refusal:
        check(replace(SAFE, **changes))
    (violation,) = refusal.value.violations
    assert violation.field == field
    assert says in str(violation)
    assert violation.remedy


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"listen": "localhost:0"},
        {"listen": "[::1]:7440"},
        {"listen": "0.0.0.0:7440", "insecure": True},
        {"listen": "0.0.0.0:7440", "tls_cert": Path("c.pem"), "tls_key": Path("k.pem")},
    ],
)
def test_safe_settings_pass(changes: dict[str, object]) -> None:
    check(replace(SAFE, **changes))
