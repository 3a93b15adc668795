"""The servers for scenarios: a real scheduler in a process of its own, which can be killed, and a planner."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

SERVING = "serving on "
COMMAND = (sys.executable, "-m", "headrace.cli")


class Server:
    """A scheduler or a planner. After a restart it has the same port."""

    def __init__(self, *command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        """Starts it, and waits until it serves."""
        listen = self.address or "127.0.0.1:0"
        process = subprocess.Popen(
            [*COMMAND, *self._command, "--listen", listen], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert SERVING in line, f"{self._command[0]} does not serve: {line!r}"
        self._process = process
        self.address = line.strip().rpartition(SERVING)[2]

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kills it; the next calls find no server."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Site:
    """A scheduler, a planner on request, and certificates; a context manager."""

    def __init__(self, database_url: str, folder: Path) -> None:
        timing = ("--heartbeat-interval", "0.5", "--lease-ttl", "2")
        self.scheduler = Server("scheduler", "--database-url", database_url, *timing)
        self._planner = Server("planner", "--workers", "1")
        self._worker: subprocess.Popen[bytes] | None = None
        self._folder = folder
        self.kills = 1
        """How often a scheduler is killed in the scenario that does so."""
        self._starting = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> "Site":
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "client"))
        from certificates import self_signed

        self.certificate = self_signed(self._folder / "ca.pem", "localhost", "127.0.0.1")
        self.other_certificate = self_signed(self._folder / "other.pem", "localhost", "127.0.0.1")
        os.environ.pop("HEADRACE_TOKEN", None)
        self.scheduler.start()
        self._stack.callback(self.scheduler.kill)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_worker(self) -> None:
        """Starts a worker, or restarts it after `kill_worker`. It keeps its name and its folder."""
        home = self._folder / "worker"
        command = (*COMMAND, "worker", "--name", "w", "--home", str(home), "--cpu-slots", "2")
        store = ("--store", (self._folder / "store").as_uri())
        named = {"HEADRACE_ADDRESS": self.scheduler.address, "HEADRACE_HOME": str(self._folder / "home")}
        with (self._folder / "worker.log").open("ab") as log:
            self._worker = subprocess.Popen(
                (*command, *store), env={**os.environ, **named}, stdout=log, stderr=log
            )
        self._stack.callback(self.kill_worker)

    def kill_worker(self) -> None:
        """Kills the worker; its trials end with it."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
            self._worker = None

    @property
    def planner(self) -> str:
        """The planner's address."""
        with self._starting:
            if not self._planner.address:
                self._planner.start()
                self._stack.callback(self._planner.kill)
        return self._planner.address
