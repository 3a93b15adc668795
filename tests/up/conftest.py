"""Stand-ins for the processes that `headrace up` runs, and a way to wait for their actions."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace_services.up.child import ChildSpec
from headrace_services.up.supervisor import Notice, Supervisor

# Writes its process id, then waits for a signal; SIGTERM ends it with success.
STEADY = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
new = pathlib.Path(sys.argv[1] + ".new"); new.write_text(str(os.getpid())); new.rename(sys.argv[1])
while True:
    signal.pause()
"""


@pytest.fixture
def steady(tmp_path: Path) -> Callable[..., ChildSpec]:
    """Makes the spec of a child that serves until it is told to stop, and is ready when it has printed its pid."""

    def make(name: str, script: str = STEADY, **fields: Any) -> ChildSpec:
        pid_file = tmp_path / f"{name}.pid"

        async def ready() -> str | None:
            return "ready" if pid_file.exists() else None

        fields.setdefault("ready", ready)
        fields.setdefault("prepare", lambda: pid_file.unlink(missing_ok=True))
        command = (sys.executable, "-c", script, str(pid_file))
        return ChildSpec(name=name, command=command, log_path=tmp_path / "logs" / f"{name}.log", **fields)

    return make


class Running:
    """A running supervisor, with its messages so far."""

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self.notices: list[Notice] = []
        self.supervisor = Supervisor(specs, announce=self.notices.append)
        self.stopping = asyncio.Event()
        self.ready = asyncio.Event()

    def said(self, child: str) -> list[str]:
        return [notice.text for notice in self.notices if notice.child == child]

    def pid(self, child: str) -> int:
        pid = self.supervisor.pid(child)
        assert pid is not None
        return pid

    async def until(self, holds: Callable[[], object], what: str, deadline_s: float = 90) -> None:
        """Polls until the condition holds."""
        try:
            async with asyncio.timeout(deadline_s):
                while not holds():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"within {deadline_s} s: {what}; said: {self.notices}")


@pytest.fixture
def running() -> Callable[[Sequence[ChildSpec]], Any]:
    """Runs a supervisor over the specs until the block ends, then stops it."""

    @asynccontextmanager
    async def run(specs: Sequence[ChildSpec]) -> AsyncIterator[Running]:
        state = Running(specs)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(state.supervisor.run(state.stopping, state.ready.set))
            await state.until(state.ready.is_set, "everything is ready", 60)
            try:
                yield state
            finally:
                state.stopping.set()

    return run
