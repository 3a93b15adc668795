"""Children start in order, are restarted when they die, and leave nothing behind."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_services.up.child import ChildFailedError
from headrace_services.up.supervisor import BACKOFF_LONGEST_S, FIRST_STARTS, Supervisor, backoff_s


async def test_starts_in_order_and_stops_in_reverse(steady, running) -> None:
    async with running([steady("database"), steady("scheduler"), steady("worker")]) as state:
        pids = [state.pid(name) for name in ("database", "scheduler", "worker")]
    assert [(notice.child, notice.text) for notice in state.notices] == [
        ("database", "starting"),
        ("database", "ready"),
        ("scheduler", "starting"),
        ("scheduler", "ready"),
        ("worker", "starting"),
        ("worker", "ready"),
        ("worker", "stopping"),
        ("worker", "stopped"),
        ("scheduler", "stopping"),
        ("scheduler", "stopped"),
        ("database", "stopping"),
        ("database", "stopped"),
    ]
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_killed_child_is_started_again_and_the_others_stay(steady, running) -> None:
    async with running([steady("database"), steady("worker")]) as state:
        killed, other = state.pid("worker"), state.pid("database")
        os.kill(killed, signal.SIGKILL)
        await state.until(lambda: "ready again" in state.said("worker"), "the worker is back")
        assert state.pid("worker") != killed
        assert state.pid("database") == other
    (died,) = [text for text in state.said("worker") if "SIGKILL" in text]
    assert died.startswith("was killed by SIGKILL; restarting it in 0.")


async def test_a_child_that_ends_by_itself_is_started_again(steady, running) -> None:
    async with running([steady("scheduler")]) as state:
        os.kill(state.pid("scheduler"), signal.SIGTERM)
        await state.until(lambda: "ready again" in state.said("scheduler"), "the scheduler is back")
    assert any(text.startswith("ended with exit status 0;") for text in state.said("scheduler"))


async def test_pauses_grow_for_a_child_that_would_only_fail_again(steady, running) -> None:
    """It is ready at once, and ends by itself."""
    failing = replace(steady("track"), command=(sys.executable, "-c", ""), ready=at_once, longest_pause_s=30)
    async with running([failing]) as state:
        await state.until(lambda: len(pauses(state.said("track"))) >= 4, "it was restarted three times")
        assert pauses(state.said("track"))[3] > 0.5


async def at_once() -> str:
    return "started"


def pauses(said: Sequence[str]) -> list[float]:
    return [float(found[1]) for text in said if (found := re.search(r"restarting it in ([\d.]+) s", text))]


async def test_a_restart_that_fails_is_tried_again(steady, running, tmp_path) -> None:
    broken = tmp_path / "broken"
    script = f"import os, sys; os.path.exists({str(broken)!r}) and sys.exit('still broken')\n"
    script += "import signal, pathlib; pathlib.Path(sys.argv[1]).touch(); signal.pause()"
    async with running([steady("scheduler", script)]) as state:
        broken.touch()
        os.kill(state.pid("scheduler"), signal.SIGKILL)
        await state.until(
            lambda: sum("exit status 1" in text for text in state.said("scheduler")) >= 2, "two failed starts"
        )
        broken.unlink()
        await state.until(lambda: "ready again" in state.said("scheduler"), "the scheduler is back")


async def test_a_child_that_fails_at_the_first_start_ends_the_run_with_its_log(steady) -> None:
    specs = [steady("database"), steady("scheduler", "import sys; sys.exit('no such option: --colour')")]
    supervisor = Supervisor(specs, announce=lambda _: None)
    with pytest.raises(ChildFailedError) as caught:
        await supervisor.run(asyncio.Event(), lambda: pytest.fail("not ready"))
    assert caught.value.message.startswith("scheduler ended with exit status 1")
    assert "no such option: --colour" in caught.value.message
    assert str(specs[1].log_path) in caught.value.remedy
    assert supervisor.pid("database") is None


@pytest.mark.parametrize(("kills", "serves"), [(1, True), (3, True), (9, False)])
async def test_a_child_that_is_killed_before_it_is_ready_is_started_again(
    steady, tmp_path, kills: int, serves: bool
) -> None:
    count = tmp_path / "starts"
    kill = f"""
import os, pathlib, signal
count = pathlib.Path({str(count)!r})
with count.open("a") as file:
    file.write("x")
if len(count.read_text()) <= {kills}:
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
"""

    async def alive() -> str | None:
        return "ready" if count.exists() and len(count.read_text()) > kills else None

    supervisor = Supervisor([steady("worker", kill, ready=alive)], announce=lambda _: None)
    stopping = asyncio.Event()
    if serves:
        await supervisor.run(stopping, stopping.set)
    else:
        with pytest.raises(ChildFailedError, match="was killed by SIGKILL"):
            await supervisor.run(stopping, lambda: pytest.fail("not ready"))
    assert len(count.read_text()) == min(kills + 1, FIRST_STARTS)


async def test_a_child_that_is_never_ready_ends_the_run_and_is_not_left(steady) -> None:
    async def never() -> str | None:
        return None

    spec = steady("scheduler", ready=never, ready_timeout_s=0.5)
    supervisor = Supervisor([spec], announce=lambda _: None)
    with pytest.raises(ChildFailedError, match=r"not ready within 0\.5 s"):
        await supervisor.run(asyncio.Event(), lambda: pytest.fail("not ready"))
    assert supervisor.pid("scheduler") is None


async def test_a_program_that_is_not_there_is_named(steady) -> None:
    def missing() -> None:
        raise FileNotFoundError(2, "No such file", "initdb")

    supervisor = Supervisor([steady("database", prepare=missing)], announce=lambda _: None)
    with pytest.raises(ChildFailedError, match=r"database could not be started.*initdb"):
        await supervisor.run(asyncio.Event(), lambda: pytest.fail("not ready"))


STUBBORN = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).touch()
while True:
    signal.pause()
"""


async def test_a_child_that_will_not_stop_is_killed_after_its_grace(steady, running) -> None:
    async with running([steady("worker", STUBBORN, stop_grace_s=0.3)]) as state:
        pid = state.pid("worker")
    assert state.said("worker")[-1] == "killed: it did not stop within 0.3 s"
    assert not psutil.pid_exists(pid)


async def test_a_kill_cuts_a_slow_stop_short(steady, running) -> None:
    async with running([steady("worker", STUBBORN, stop_grace_s=600)]) as state:
        state.stopping.set()
        await state.until(lambda: "stopping" in state.said("worker"), "it stops")
        state.supervisor.kill()
    assert state.said("worker")[-1] == "was killed by SIGKILL"


async def test_a_stop_during_the_start_leaves_nothing(steady) -> None:
    async def never() -> str | None:
        return None

    stopping = asyncio.Event()
    supervisor = Supervisor([steady("worker", ready=never)], announce=lambda _: None)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run(stopping, lambda: pytest.fail("not ready")))
        async with asyncio.timeout(60):
            while supervisor.pid("worker") is None:
                await asyncio.sleep(0.02)
        stopping.set()
    assert supervisor.pid("worker") is None


ORPHANS = """
import asyncio, sys
from pathlib import Path
from headrace_services.up.child import ChildSpec
from headrace_services.up.supervisor import Supervisor

command = (sys.executable, "-c", "import signal; signal.pause()")
child = ChildSpec(name="child", command=command, log_path=Path(sys.argv[1]))
supervisor = Supervisor([child], announce=lambda notice: None)
asyncio.run(supervisor.run(asyncio.Event(), lambda: print(supervisor.pid("child"), flush=True)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_the_kernel_ends_the_children_of_a_killed_supervisor(tmp_path) -> None:
    command = [sys.executable, "-c", ORPHANS, str(tmp_path / "child.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        child = psutil.Process(int(supervisor.stdout.readline()))
        supervisor.kill()
    gone, alive = psutil.wait_procs([child], timeout=10)
    assert gone
    assert not alive


@given(attempt=st.integers(1, 10_000), seed=st.integers())
def test_pauses_grow_to_a_bound_and_never_vanish(attempt: int, seed: int) -> None:
    pause_s = backoff_s(attempt, random.Random(seed))
    assert 0.125 <= pause_s <= BACKOFF_LONGEST_S
    assert pause_s <= 0.25 * 2 ** min(attempt - 1, 100)
