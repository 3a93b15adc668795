"""Several schedulers in one address: by host name, over IPv6 and over TLS. When one is gone, the next one answers."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from certificates import self_signed
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace import AsyncClient, Client
from headrace.client.route import Route
from headrace.errors import DatabaseUnavailableError, UnreachableError
from headrace.v1 import study_pb2_grpc

Serve = Callable[..., tuple[grpc.Server, int]]


@pytest.fixture
def serve(fake: FakeStudyService, script: Script) -> Iterator[Serve]:
    """Serves the scripted study at a host; over TLS with a certificate and its key."""
    fake.add(script)
    servers = []

    def start(host: str = "localhost", pair: tuple[Path, Path] | None = None) -> tuple[grpc.Server, int]:
        server = grpc.server(ThreadPoolExecutor(8))
        study_pb2_grpc.add_StudyServiceServicer_to_server(fake, server)
        if pair is None:
            port = server.add_insecure_port(f"{host}:0")
        else:
            keys = [(pair[1].read_bytes(), pair[0].read_bytes())]
            port = server.add_secure_port(f"{host}:0", grpc.ssl_server_credentials(keys))
        server.start()
        servers.append(server)
        return server, port

    yield start
    for server in servers:
        server.stop(None).wait()


def fails_over(address: str, *, stop: grpc.Server) -> None:
    """A client continues, within a second or two, when the scheduler that it talks to is gone."""
    with Client(address, timeout_s=10) as client:
        assert client.study("digits").status().name == "digits"
        stop.stop(None).wait()
        assert client.study("digits").status().name == "digits"
        assert len(list(client.study("digits").watch())) > 1

    async def run() -> None:
        async with AsyncClient(address, timeout_s=10) as client:
            assert (await client.study("digits").status()).name == "digits"

    asyncio.run(run())


def test_by_host_name(serve: Serve) -> None:
    (first, one), (_, two) = serve(), serve()
    fails_over(f"localhost:{one},localhost:{two}", stop=first)


def test_ipv6_and_ipv4_in_one_address(serve: Serve) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 on this machine")
    (first, one), (_, two), (_, three) = serve("[::1]"), serve("[::1]"), serve("127.0.0.1")
    fails_over(f"[::1]:{one},[::1]:{two}", stop=first)
    fails_over(f"[::1]:{one},127.0.0.1:{three}", stop=first)


def test_over_tls(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = self_signed(tmp_path / "ca.pem", "localhost")
    monkeypatch.setenv("HEADRACE_TLS_CA", str(pair[0]))
    (first, one), (_, two) = serve(pair=pair), serve(pair=pair)
    fails_over(f"tls://localhost:{one},localhost:{two}", stop=first)


def test_tls_checks_each_scheduler_against_its_own_name(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = self_signed(tmp_path / "name.pem", "localhost")
    by_number = self_signed(tmp_path / "number.pem", "127.0.0.1")
    both = tmp_path / "both.pem"
    both.write_bytes(by_name[0].read_bytes() + by_number[0].read_bytes())
    monkeypatch.setenv("HEADRACE_TLS_CA", str(both))
    (first, one), (_, two) = serve(pair=by_name), serve("127.0.0.1", pair=by_number)
    fails_over(f"tls://localhost:{one},127.0.0.1:{two}", stop=first)
    _, again = serve(pair=by_name)
    with (  # trusted authorities, each with the wrong name
        Client(f"tls://127.0.0.1:{again},localhost:{two}", connect_timeout_s=1) as client,
        pytest.raises(UnreachableError),
    ):
        client.studies()


def test_a_name_that_nobody_knows_is_passed_over(serve: Serve) -> None:
    _, port = serve()
    with Client(f"no-such-host.invalid:1,localhost:{port}", timeout_s=60) as client:
        assert client.study("digits").status().name == "digits"


def test_a_scheduler_that_takes_connections_and_says_nothing_is_passed_over(serve: Serve) -> None:
    _, port = serve()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]},localhost:{port}"
        with Client(address, timeout_s=30, connect_timeout_s=5) as client:
            assert client.study("digits").status().name == "digits"


def test_a_proxy_is_not_asked_for_this_machine(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    _, port = serve()
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Client(f"localhost:{port}", connect_timeout_s=2) as client:
        assert client.study("digits").status().name == "digits"


def test_a_route_goes_round_and_moves_on_once_for_failures_together() -> None:
    route = Route(("a", "b", "c"), lambda replica: [replica])
    gone = UnreachableError("gone")
    first = route.channel()
    assert (first, route.has_untried) == (["a"], False)
    for _ in range(3):
        route.note(first, gone)
    second = route.channel()
    assert (second, route.has_untried) == (["b"], True)
    route.note(second, DatabaseUnavailableError("Postgres is away."))  # it answers
    assert (route.channel(), route.has_untried) == (second, False)
    for _ in range(3):
        route.note(route.channel(), gone)
    assert (route.channel(), route.has_untried) == (second, False)
    assert list(route.opened()) == [["a"], ["b"], ["c"]]
