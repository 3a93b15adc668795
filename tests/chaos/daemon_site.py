"""Real worker daemons, each a child of this process, and ways to stop, kill and count what they started."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from cluster_site import until

PR_SET_CHILD_SUBREAPER = 36


@dataclass(slots=True)
class DaemonSite:
    """A worker daemon that can be restarted under the same name, with or without its memory."""

    name: str
    addresses: Sequence[str]
    home: Path
    store: Path
    slots: int = 1
    labels: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """In addition to this process's own."""
    _process: subprocess.Popen[bytes] | None = None

    def start(self, home: Path | None = None) -> None:
        """Start the daemon. On another home it knows nothing of what it did before."""
        self.home = home or self.home
        self.home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "headrace.cli", "worker", "--scheduler", ",".join(self.addresses)]
        command += ["--name", self.name, "--home", str(self.home), "--store", self.store.as_uri()]
        command += ["--cpu-slots", str(self.slots)] if self.slots else []
        command += ["--stop-grace", "5"]
        command += [word for label in self.labels for word in ("--label", label)]
        with (self.home / "daemon.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **self.env}
            )

    @property
    def pid(self) -> int | None:
        """The daemon, if it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def until_connected(self) -> None:
        """Wait until the daemon has a session."""
        until(lambda: "session open" in (self.home / "daemon.log").read_text(), "a session")

    def family(self) -> list[psutil.Process]:
        """The daemon and everything that it started, the daemon first."""
        if self.pid is None:
            return []
        try:
            daemon = psutil.Process(self.pid)
            return [daemon, *daemon.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> list[psutil.Process]:
        """`kill -9` the daemon alone. Returns what it had started, which must end by itself."""
        family = self.family()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        return family[1:]

    def freeze(self) -> list[psutil.Process]:
        """Stop the daemon and its trials, as on a machine that hangs."""
        family = self.family()
        for process in family:
            send(process, signal.SIGSTOP)
        return family

    def leave(self) -> None:
        """Ask it to end cleanly."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()

    def stop(self) -> None:
        """Wait for the end that `leave` requested."""
        if self._process is None:
            return
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def thaw(family: Sequence[psutil.Process]) -> None:
    """Let frozen processes continue. The trials come first, so that they act before the daemon can tell them
    anything."""
    for process in reversed(family):
        send(process, signal.SIGCONT)


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal, if the process is still there."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def running(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def zombies() -> set[int]:
    """Processes that ended, and whose parent, a live daemon, has not waited for them. Most of them are zombies
    only briefly."""
    ours = psutil.Process()
    found = set()
    for process in ours.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.ppid() != ours.pid and process.status() == psutil.STATUS_ZOMBIE:
                found.add(process.pid)
    return found


def reap(orphans: Sequence[psutil.Process]) -> None:
    """Do what process 1 does with the processes that a dead daemon left behind."""
    for orphan in orphans:
        with suppress(ChildProcessError):
            os.waitpid(orphan.pid, os.WNOHANG)


@contextmanager
def orphans_come_here() -> Iterator[None]:
    """Make this process the reaper of its descendants, so that what a killed daemon leaves behind can be seen and
    counted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        yield
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def daemons(found: Sequence[DaemonSite]) -> Iterator[Sequence[DaemonSite]]:
    """Start daemons, and stop them when the block ends."""
    try:
        for daemon in found:
            daemon.start()
        yield found
    finally:
        for daemon in found:
            daemon.leave()
        for daemon in found:
            daemon.stop()
