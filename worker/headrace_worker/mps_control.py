"""The control daemon of MPS, through its own command line: `nvidia-cuda-mps-control` reads commands from its standard
input, and passes them to the daemon whose pipe directory its environment names.

A command that is not answered in time is given up, and for a while no other is tried: a control daemon that hangs
delays its worker once, not at each command. A process that the daemon names is checked before it is trusted.
"""

import asyncio
import os
import signal
import stat
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

from headrace.environment import select
from headrace.mps import (
    BINARY,
    LOG_DIRECTORY,
    OWNER,
    PIPE_DIRECTORY,
    Control,
    control_at,
    has_sockets,
)

_Result = TypeVar("_Result")
ANSWER_S: Final = 10.0
"""How long the control daemon may take to answer."""
START_S: Final = 20.0
"""How long it may take to start, and a server to be ready."""
MUTE_S: Final = 60.0
"""How long one that did not answer is left in peace."""
_STARTED: Final = "start.log"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_SUCCESS: Final = ("0", "CUDA_SUCCESS")
_KILLED_S: Final = 1.0
_OTHER_S: Final = 1.0
_POLL_S: Final = 0.05
_TOLD: Final = 300
"""This many characters of what it says are repeated."""


class MpsError(Exception):
    """The control daemon does not do what it was asked; the text says what it said."""


class MpsControl:
    """The control daemon at one place."""

    def __init__(self, pipe: Path, owner: str, environ: Mapping[str, str]) -> None:
        """`owner` identifies the worker; `environ` is the worker's environment. A server runs as the trials' user,
        so it gets what they get."""
        self._pipe = pipe
        self._owner = owner
        names = {PIPE_DIRECTORY: str(pipe), LOG_DIRECTORY: str(self.log_dir)}
        passed = {name: value for name, value in select(environ, ()).passed.items() if name != _VISIBLE}
        self._environ = {**passed, **names}
        self._mute_until = 0.0

    def serves(self, cards: Sequence[str]) -> None:
        """Names the cards, by UUID, that one which is started from now on serves. A server does not start if it sees a
        card that it cannot serve."""
        self._environ[_VISIBLE] = ",".join(cards)

    @property
    def hangs(self) -> bool:
        """Whether it has recently left a question without an answer."""
        return asyncio.get_running_loop().time() < self._mute_until

    @property
    def log_dir(self) -> Path:
        """Where the daemon and its servers log."""
        return self._pipe / "log"

    @property
    def found(self) -> Control | None:
        """The control daemon that runs; None if none does."""
        return control_at(self._pipe)

    @property
    def is_ours(self) -> bool:
        """Whether this worker, or its predecessor, started the one that runs."""
        return (found := self.found) is not None and found.owner == self._owner

    async def start(self) -> None:
        """Starts it, unless one runs. Raises `MpsError`.

        Its environment names its owner, so a worker that is killed at any moment leaves nothing unclear.
        """
        if self.found is not None:
            return
        await self._refuse_unseen()
        try:
            for folder in (self._pipe, self.log_dir):
                _make(folder)
            with _opened(self.log_dir / _STARTED) as said:
                process = await asyncio.create_subprocess_exec(
                    *(BINARY, "-d"),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    env={**self._environ, OWNER: self._owner},
                    umask=0o022,
                    start_new_session=True,
                )
            await _in_time(process.wait(), process, START_S, "it did not start")
        except OSError as error:
            raise MpsError(f"it cannot be started: {error}") from error
        if (
            process.returncode
        ):  # unless another one is just starting, such as that of a worker that was killed
            await _until(lambda: self.found is not None, _OTHER_S, self._why_not_started(process.returncode))
        await _until(lambda: self.found is not None, START_S, "it started, and then was not there")

    async def _refuse_unseen(self) -> None:
        """One that answers although its process is not to be seen is another container's, with which this one shares
        a folder: a second one would take its sockets."""
        if not has_sockets(self._pipe):
            return
        try:
            await self.servers()
        except MpsError:
            if self.hangs:
                raise
            return  # what a dead one has left
        raise MpsError(
            f"a control daemon of another container serves {self._pipe}: give each container a folder of its own with "
            f"{PIPE_DIRECTORY}, or let them share their processes (pid: host)"
        )

    def _why_not_started(self, status: int) -> str:
        with suppress(OSError):
            if said := (self.log_dir / _STARTED).read_text(errors="replace").strip():
                return f"it did not start: {said[-_TOLD:]}"
        return f"it did not start: exit status {status}; {self.log_dir / 'control.log'} may say why"

    async def ask(self, command: str, patience_s: float = ANSWER_S, *, acts: bool = False) -> str:
        """Gives it a command and returns the answer. Raises `MpsError`. `acts`: it is no question, and may take its
        time because of what a client does."""
        if self.hangs:
            raise MpsError(f"it did not answer, and is not asked again for {MUTE_S:g} s")
        try:
            process = await asyncio.create_subprocess_exec(
                BINARY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            raise MpsError(f"{BINARY} cannot be started: {error}") from error
        try:
            said, _ = await _in_time(
                process.communicate(f"{command}\n".encode()), process, patience_s, f"no answer to {command!r}"
            )
        except MpsError:
            if not acts:
                self._mute_until = asyncio.get_running_loop().time() + MUTE_S
            raise
        answer = said.decode(errors="replace").strip()
        if process.returncode:
            raise MpsError(f"{command!r}: {answer[-_TOLD:] or f'exit status {process.returncode}'}")
        return answer

    async def servers(self) -> list[int]:
        """The servers' process ids. Raises `MpsError`."""
        return _numbers(await self.ask("get_server_list"))

    async def clients(self, server: int) -> list[int]:
        """The process ids of a server's clients. Raises `MpsError`."""
        return _numbers(await self.ask(f"get_client_list {server}"))

    async def status(self, server: int) -> str:
        """What a server says about itself: `INITIALIZING`, `ACTIVE`, or `FAULT`. Raises `MpsError`."""
        return (await self.ask(f"get_server_status {server}")).upper()

    async def start_server(self, uid: int) -> None:
        """Starts a user's server ahead of its first client. Raises `MpsError`."""
        await self.ask(f"start_server -uid {uid}", START_S, acts=True)

    async def terminate_client(self, server: int, client: int) -> None:
        """Ends a client's work on the cards; its process continues. Raises `MpsError`: the answer is CUDA's result,
        whatever the exit status."""
        answer = await self.ask(command := f"terminate_client {server} {client}", acts=True)
        if answer and answer.split()[-1] not in _SUCCESS:
            raise MpsError(f"{command!r}: {answer[-_TOLD:]}")

    async def shut_down(self, server: int) -> None:
        """Ends a server, whatever its clients do. Raises `MpsError`."""
        await self.ask(f"shutdown_server {server} -f", acts=True)

    async def gone(self, server: int) -> None:
        """Waits until a server's process has ended. Raises `MpsError`."""
        await _until(lambda: not is_running(server), ANSWER_S, f"server {server} does not end")

    async def quit(self) -> None:
        """Ends the control daemon; returns when it is gone. Raises `MpsError`."""
        running = self.found
        if running is None:
            return
        try:
            await self.ask("quit")
            await _until(lambda: self.found is None, ANSWER_S, "it does not end")
        except MpsError:
            if self.found != running:
                return
            with suppress(ProcessLookupError, PermissionError):
                os.kill(running.pid, signal.SIGTERM)
            raise


def _make(folder: Path) -> None:
    """Makes a folder in which trials of another user find sockets, and which nobody else writes. Raises `OSError`."""
    for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        missing.mkdir(exist_ok=True)
        missing.chmod(0o755)  # whatever the umask is
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} is a link, or belongs to user {found.st_uid}")
    folder.chmod(0o755)


def _opened(path: Path) -> BinaryIO:
    """A file to write, and never one that a link names. Raises `OSError`."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644), "wb")


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _numbers(answer: str) -> list[int]:
    """The process ids in an answer. Raises `MpsError` if it is a sentence."""
    words = answer.split()
    if not all(word.isdecimal() for word in words):
        raise MpsError(answer[-_TOLD:])
    return [int(word) for word in words]


async def _until(condition: Callable[[], bool], within_s: float, text: str) -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + within_s
    while not condition():
        if loop.time() >= ends_at:
            raise MpsError(text)
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _deadline(within_s: float, text: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError as error:
        raise MpsError(text) from error


async def _in_time(
    work: Coroutine[Any, Any, _Result],  # Any: Coroutine's own parameters
    process: asyncio.subprocess.Process,
    patience_s: float,
    text: str,
) -> _Result:
    """Waits for a command; one that takes too long is killed."""
    try:
        async with _deadline(patience_s, text):
            return await work
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError, TimeoutError):
                process.kill()
                await asyncio.wait_for(process.wait(), _KILLED_S)
