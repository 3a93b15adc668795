"""One supervised process: what it is, how it starts, when it is ready and how it ends.

The child runs in its own session, so a Ctrl-C in the terminal reaches only `up` and the stop is orderly. Its
output goes to its log file, to which every restart appends.
"""

import asyncio
import datetime
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.home import append_private
from headrace_services.up import launch

PROBE_INTERVAL_S = 0.1
LOG_TAIL_LINES = 12
STARTS_MARK = "starts it ---"


async def _ready_at_once() -> str | None:
    return ""


def nothing() -> None:
    """Prepares nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process to keep alive."""

    name: str
    command: tuple[str, ...]
    log_path: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment."""
    user: str | None = None
    """The system user to run as; needs root."""
    sockets: tuple[int, ...] = ()
    """Descriptors of sockets that the process inherits, under the same numbers."""
    folder: Path | None = None
    """The working folder of the process. It is entered before the user changes, so the user need not have access
    to the way there."""
    prepare: Callable[[], None] = nothing
    """Runs in a thread before every start."""
    ready: Callable[[], Awaitable[str | None]] = _ready_at_once
    """Returns a few words for people once the child serves, None before; must not hang."""
    ready_timeout_s: float = 60
    needed: bool = True
    """Whether the others, and `on_ready`, wait for it. Otherwise it starts beside them; its failure stops nothing."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 30
    kill_signal: signal.Signals = signal.SIGKILL
    longest_pause_s: float = 0.5
    """The longest pause before a restart once it was ready: it can start, so there is no reason to wait longer."""
    steady_after_s: float = 5.0
    """A process that lived this long counts as healthy: its next pause is the first one again. The default is short,
    because a process that is killed from outside again and again should not be delayed, and one that dies by itself
    every few seconds costs little."""
    death_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends the child when this process dies."""


class ChildFailedError(HeadraceError):
    """A child ended, or did not become ready in time."""

    def __init__(
        self, spec: ChildSpec, what: str, *, remedy: str | None = None, killed: bool = False
    ) -> None:
        """`killed`: somebody, or the kernel, ended it with SIGKILL."""
        self.killed = killed
        tail = log_tail(spec.log_path)
        self.brief = f"{what}: {tail.splitlines()[-1].strip()}" if tail.strip() else what
        """The same with only the last line of its log."""
        super().__init__(
            f"{spec.name} {what}" + (f"; the end of its log:\n{tail}\n" if tail else ""),
            remedy=remedy or f"Fix the cause and start again; the whole log is {spec.log_path}.",
        )


class Child:
    """The process of a ChildSpec, over all its restarts. Used by one task at a time."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.started_at = 0.0
        """Event-loop time of the last start."""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process, if it is running."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self) -> str:
        """Starts the process and returns its readiness message. Raises ChildFailedError, with no process left."""
        spec = self.spec
        self.started_at = asyncio.get_running_loop().time()
        try:
            await asyncio.to_thread(spec.prepare)
            self._process = await _spawn(spec)
        except HeadraceError as error:
            raise ChildFailedError(
                spec, f"could not be started: {error.message}", remedy=error.remedy
            ) from error
        except (OSError, subprocess.SubprocessError) as error:
            raise ChildFailedError(spec, f"could not be started: {error}") from error
        try:
            async with asyncio.timeout(spec.ready_timeout_s):
                return await self._until_ready(self._process)
        except TimeoutError:
            self.kill()
            await self._process.wait()
            raise ChildFailedError(spec, f"was not ready within {spec.ready_timeout_s:g} s") from None

    async def wait(self) -> str:
        """Waits for the end of the process and says how it ended."""
        assert self._process is not None
        return _ending(await self._process.wait())

    async def stop(self) -> str:
        """Asks the process to end, kills it after its grace, and says how it ended."""
        process = self._process
        if process is None:
            return "was not running"
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(self.spec.stop_signal)
            try:
                async with asyncio.timeout(self.spec.stop_grace_s):
                    await process.wait()
            except TimeoutError:
                self.kill()
                await self._until_dead(process)
                return f"killed: it did not stop within {self.spec.stop_grace_s:g} s"
        return "stopped" if process.returncode == 0 else _ending(await process.wait())

    def kill(self) -> None:
        """Kills the process and everything that it started in its process group, now."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, self.spec.kill_signal)

    async def _until_ready(self, process: asyncio.subprocess.Process) -> str:
        ended = asyncio.ensure_future(process.wait())
        try:
            while True:
                asked = asyncio.ensure_future(self.spec.ready())
                try:
                    await asyncio.wait([asked, ended], return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        status = ended.result()
                        raise ChildFailedError(self.spec, _ending(status), killed=status == -signal.SIGKILL)
                    if (answer := asked.result()) is not None:
                        return answer
                finally:
                    asked.cancel()
                await asyncio.wait([ended], timeout=PROBE_INTERVAL_S)
        finally:
            ended.cancel()

    async def _until_dead(self, process: asyncio.subprocess.Process) -> None:
        """The kill signal may be ignored; SIGKILL, a little later, cannot be."""
        try:
            async with asyncio.timeout(5):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines that the child wrote since its last start; empty if there are none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 8192))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rpartition(f"{STARTS_MARK}\n")[2].splitlines()[-lines:])


async def _spawn(spec: ChildSpec) -> asyncio.subprocess.Process:
    command = launch.command(spec.command, death_signal=spec.death_signal, user=spec.user, folder=spec.folder)
    with append_private(spec.log_path) as log:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        log.write(f"--- {now} headrace up {STARTS_MARK}\n".encode())
        log.flush()
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **spec.env},
            start_new_session=True,
            pass_fds=spec.sockets,
        )


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit status {returncode}"
