"""What an actor does: it waits for a join token, runs a worker, and ends with it. It needs no Ray."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

TOKEN_WAIT_S: Final = 600.0
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What each worker of a launch is told."""

    options: tuple[str, ...]
    """Of `headrace worker`, without its name, home and token."""
    tokens: bool = False
    """Whether it joins with a token."""
    authority: str = field(default="", repr=False)
    """The authority of the scheduler's certificate, in PEM; empty: the system's."""


class Seat:
    """One worker, from its token to its end."""

    def __init__(
        self,
        worker: Worker,
        name: str,
        *,
        over: Callable[[int], None] = os._exit,
        token_wait_s: float = TOKEN_WAIT_S,
        program: tuple[str, ...] = (sys.executable, "-m", "headrace.cli", "worker"),
    ) -> None:
        """Starts at once if there is no token to wait for. `over` is called with the worker's exit status; it ends the
        process.
        """
        self._worker, self._name, self._over, self._program = worker, name, over, program
        self._lock = threading.Lock()
        self._token: str | None = None
        self._given = threading.Event()
        if not worker.tokens:
            self._given.set()
        self._process: subprocess.Popen[bytes] | None = None
        self._token_wait_s = token_wait_s
        threading.Thread(target=self._run, daemon=True).start()

    def awaits_token(self) -> bool:
        """Whether the worker has not started for want of a token."""
        return not self._given.is_set()

    def give(self, token: str) -> bool:
        """Takes the token; False if it has another one."""
        with self._lock:
            if self._token is None:
                self._token = token
            taken = self._token == token
        self._given.set()
        return taken

    def _run(self) -> None:
        status = 1
        try:
            if not self._given.wait(self._token_wait_s):
                said = f"no join token arrived within {self._token_wait_s:g} s. Is `headrace launch ray` running?"
                print(f"headrace: {said}", file=sys.stderr, flush=True)
                return
            status = self._work()
        finally:
            self._over(status)

    def _work(self) -> int:
        home = Path(tempfile.mkdtemp(prefix="headrace-"))  # closed to others
        line = [*self._program, *self._worker.options, "--name", self._name, "--home", str(home / "worker")]
        if self._worker.authority:
            (home / "ca.pem").write_text(self._worker.authority)
            line += ["--tls-ca", str(home / "ca.pem")]
        if self._token is not None:
            line += ["--join", "-"]
        guard = [sys.executable, "-I", "-S", __file__, str(os.getpid()), *line]
        process = subprocess.Popen(guard, stdin=subprocess.PIPE)
        process.communicate((self._token or "").encode())
        if process.returncode == 0:
            shutil.rmtree(home, ignore_errors=True)  # all is reported
        return process.returncode


def main(arguments: list[str]) -> None:
    """Does not return: becomes the worker, which is sent SIGTERM when its parent process ends."""
    parent, *line = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before the call, so no signal will arrive
        sys.exit("the actor is gone")
    os.execvp(line[0], line)  # noqa: S606 - to become the worker is the point


if __name__ == "__main__":
    main(sys.argv[1:])
