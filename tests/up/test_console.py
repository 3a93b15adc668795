"""The console as a child of `headrace up`: nothing waits for it, its end stops nothing, and its address is known."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.home import console_of
from headrace_services.up import home as up_home
from headrace_services.up import probe
from headrace_services.up.child import ChildSpec
from headrace_services.up.children import Options, children
from headrace_services.up.ports import console_listener, free_ports
from headrace_services.up.probe import console_serves

SCHEDULER = "127.0.0.1:7440"


def test_it_is_the_last_child_and_gets_every_scheduler(tmp_path: Path) -> None:
    with console_listener(0, 0) as held:
        options = Options(home=tmp_path, ports=(7440, 7441), console_socket=held)
        console, number = children(options)[-1], held.fileno()
        assert console.name == "console"
        assert not console.needed
        both = "127.0.0.1:7440,127.0.0.1:7441"
        assert console.command[-4:] == ("--listen", f"fd:{number}", "--address", both)
        assert console.sockets == (number,)
        assert options.console == f"http://127.0.0.1:{held.getsockname()[1]}"
    assert Options(home=tmp_path, ports=(7440,)).console is None


def test_a_taken_port_leads_to_the_next_free_one() -> None:
    """Also while nobody accepts connections there yet, as with a second `headrace up` that has just begun."""
    with console_listener(0, 0) as taken:
        port = taken.getsockname()[1]
        with console_listener(None, port) as found:
            assert found.getsockname()[1] > port or port > 65000
        with pytest.raises(HeadraceError, match=f"cannot listen on 127.0.0.1:{port}"):
            console_listener(port, 7450)


def test_the_schedulers_port_is_not_taken() -> None:
    with console_listener(0, 0) as free:
        port = free.getsockname()[1]
    with console_listener(None, port, others=[port]) as found:
        assert found.getsockname()[1] != port
    with pytest.raises(HeadraceError, match=f"--console {port} is the port of the scheduler"):
        console_listener(port, 7450, others=[port])


def test_its_address_is_known_for_its_own_scheduler_alone_and_gone_after(tmp_path: Path) -> None:
    with up_home.advertised(tmp_path, [SCHEDULER], "http://127.0.0.1:7450"):
        assert console_of(SCHEDULER, tmp_path) == "http://127.0.0.1:7450"
        assert console_of("127.0.0.1:7441", tmp_path) is None
    assert console_of(SCHEDULER, tmp_path) is None
    assert [*tmp_path.iterdir()] == []
    with up_home.advertised(tmp_path, [SCHEDULER]):
        assert console_of(SCHEDULER, tmp_path) is None


def test_a_home_that_is_held_has_no_console_of_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "console").write_text("http://127.0.0.1:1\n")
    with up_home.hold(tmp_path):
        assert not (tmp_path / "console").exists()


async def test_it_serves_when_it_answers_on_the_port_that_is_held(
    tmp_path: Path,
    steady: Callable[..., ChildSpec],
    running: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "DEADLINE_S", 0.2)
    with console_listener(0, 0) as held:
        port = held.getsockname()[1]
        assert await console_serves(port)() is None, "it is held, and nobody answers"
        spec = children(Options(home=tmp_path, ports=(7440,), console_socket=held))[-1]
        async with running([steady("scheduler"), spec]) as state:
            ready = f"serving on http://127.0.0.1:{port}"
            await state.until(lambda: any(ready in line for line in state.said("console")), "it answers")
    assert await console_serves(port)() is None


async def test_one_that_cannot_start_is_tried_again_and_stops_nothing(
    tmp_path: Path, steady: Callable[..., ChildSpec], running: Callable[..., Any]
) -> None:
    broken = ChildSpec(
        name="console",
        command=(sys.executable, "-c", "raise SystemExit('no such module')"),
        log_path=tmp_path / "console.log",
        ready=console_serves(1),
        needed=False,
    )
    async with running([steady("scheduler"), broken]) as state:
        await state.until(lambda: len(state.said("console")) >= 3, "it is tried again")
        assert "no such module; restarting it" in state.said("console")[1]
        assert state.pid("scheduler")


async def test_one_that_is_killed_comes_back(
    steady: Callable[..., ChildSpec], running: Callable[..., Any]
) -> None:
    async with running([steady("scheduler"), steady("console", needed=False)]) as state:
        await state.until(lambda: "ready" in state.said("console"), "it is ready")
        before = state.pid("scheduler")
        state.supervisor._children[1].kill()
        await state.until(lambda: "ready again" in state.said("console"), "it is back")
        assert state.pid("scheduler") == before


def test_without_a_home_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "nowhere"))
    assert console_of(SCHEDULER) is None


def test_another_console_is_named_by_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CONSOLE", "https://tune.example.com/")
    assert console_of("tune.example.com:7440", tmp_path) == "https://tune.example.com"
    with up_home.advertised(tmp_path, [SCHEDULER], "http://127.0.0.1:7450"):
        assert console_of(SCHEDULER, tmp_path) == "http://127.0.0.1:7450", "its own comes first"
        assert console_of("tune.example.com:7440", tmp_path) == "https://tune.example.com"
    monkeypatch.setenv("HEADRACE_CONSOLE", "")
    assert console_of("tune.example.com:7440", tmp_path) is None


def test_an_exporter_is_told_the_console_beside_it(tmp_path: Path) -> None:
    with console_listener(0, 0) as held:
        options = Options(
            home=tmp_path, ports=(7440,), console_socket=held, track=(("tensorboard=/runs", {}),)
        )
        tracks = [child for child in children(options) if child.name == "track"]
        assert [child.env["HEADRACE_CONSOLE"] for child in tracks] == [options.console]
    without = Options(home=tmp_path, ports=(7440,), track=(("tensorboard=/runs", {}),))
    assert "HEADRACE_CONSOLE" not in children(without)[-1].env


@pytest.mark.parametrize("option", ["--console", "--planner", "--port"])
def test_a_taken_port_names_its_option(option: str) -> None:
    with console_listener(0, 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HeadraceError) as found:
            console_listener(port, 0) if option == "--console" else free_ports(port, 1, option=option)
    assert f"ive another {option}; 0 takes any free one." in str(found.value.remedy)
    assert ("Another Headrace may run there" in str(found.value.remedy)) == (option == "--port")
