"""`headrace up` waits for its own scheduler: one that another instance started on the same port does not count."""

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc

from headrace.errors import HeadraceError
from headrace_services.instance import NAMED_IN, tell_instance
from headrace_services.serving.health import Health
from headrace_services.up import command
from headrace_services.up.child import ChildFailedError
from headrace_services.up.children import Options, children
from headrace_services.up.notices import Notices


@asynccontextmanager
async def serving(instance: str) -> AsyncIterator[int]:
    """A server that some `headrace up` started."""
    server, health = grpc.aio.server(), Health()
    tell_instance(health, instance)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port
    await server.stop(None)


@pytest.mark.parametrize("name", ["scheduler", "planner"])
async def test_a_server_of_another_is_not_taken_for_ones_own(tmp_path: Path, name: str) -> None:
    async with serving("") as port:
        options = Options(home=tmp_path, ports=(port,), planner_port=port)
        spec = next(spec for spec in children(options) if spec.name == name)
        assert await spec.ready() is None
    async with serving(spec.env[NAMED_IN]) as port:
        options = Options(home=tmp_path, ports=(port,), planner_port=port, instance=options.instance)
        spec = next(spec for spec in children(options) if spec.name == name)
        assert await spec.ready() == f"serving on 127.0.0.1:{port}"


def test_each_up_is_one_of_its_own(tmp_path: Path) -> None:
    assert Options(home=tmp_path, ports=(1,)).instance != Options(home=tmp_path, ports=(1,)).instance


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_port_that_was_taken_meanwhile_is_named_with_the_remedy(
    steady, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_taken: bool
) -> None:
    monkeypatch.setattr(
        command, "children", lambda _: [steady("scheduler", "import sys; sys.exit('cannot listen')")]
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        if not is_taken:
            taken.close()
        wanted = f"cannot listen on 127.0.0.1:{port}: Address already in use" if is_taken else "exit status 1"
        with pytest.raises(HeadraceError, match=wanted) as caught:
            await command.run(Options(home=tmp_path, ports=(port,)), Notices(), 0.0)
    assert isinstance(caught.value, ChildFailedError) != is_taken
    assert ("--port" in str(caught.value.remedy)) == is_taken


async def test_a_restart_that_fails_says_the_childs_last_line(steady, running, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    script = f"import os, sys; os.path.exists({str(broken)!r}) and sys.exit('cannot listen on port 7\\n')\n"
    script += "import signal, pathlib; pathlib.Path(sys.argv[1]).touch(); signal.pause()"
    async with running([steady("scheduler", script)]) as state:
        broken.touch()
        os.kill(state.pid("scheduler"), signal.SIGKILL)
        await state.until(
            lambda: any("exit status 1" in text for text in state.said("scheduler")), "a failed start"
        )
    (first, *_) = [text for text in state.said("scheduler") if "exit status 1" in text]
    assert first.startswith("ended with exit status 1: cannot listen on port 7; restarting it in")
