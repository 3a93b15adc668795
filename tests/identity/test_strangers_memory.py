"""A real scheduler that requires tokens, and strangers who want its memory.
`benchmarks/identity/bench_strangers.py` tries all of them, and measures."""

import subprocess
import sys
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from strangers import ATTACKS, MIB, Crowd

from headrace.error_status import from_rpc_error
from headrace.errors import BusyError
from headrace_services.serving.limits import Strangers

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
SERVING = "headrace scheduler: serving on "
GROWTH_BYTES = 100 * MIB
LIMITS = Strangers()


@pytest.fixture
def scheduler(database_url: str) -> Iterator[tuple[str, psutil.Process]]:
    """Its address and its process."""
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", database_url]
    listen = ("--listen", "127.0.0.1:0", "--auth", "tokens", "--insecure")
    with subprocess.Popen([*command, *listen], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip().removeprefix(SERVING), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


def check(address: str) -> None:
    """Check health over a new connection. While unprocessed calls wait, some are dropped, as clients expect."""
    until = time.monotonic() + 60
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        while True:
            try:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            except grpc.RpcError as error:
                if not isinstance(from_rpc_error(error), BusyError) or time.monotonic() > until:
                    raise
                time.sleep(0.2)
            else:
                return


@pytest.mark.parametrize(
    "attack",
    [
        "240 watches of names of 4 MB",
        "240 joins, all but the last bytes",
        "10,000 watches",
        "3,000 connections",
        "5,000 checks whose answer is not read",
    ],
)
def test_strangers_get_little_and_others_are_served(
    scheduler: tuple[str, psutil.Process], attack: str
) -> None:
    address, process = scheduler
    for _ in range(20):
        check(address)
    before, crowd = process.memory_info().rss, Crowd(address)
    ATTACKS[attack](crowd)
    check(address)
    until = time.monotonic() + 60  # connections are closed gradually
    while crowd.open() > LIMITS.calls or crowd.connected() > LIMITS.connections:
        assert time.monotonic() < until, (crowd.open(), crowd.connected())
        time.sleep(0.2)
    assert process.memory_info().rss - before < GROWTH_BYTES
    check(address)
    crowd.leave()
