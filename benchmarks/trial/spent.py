"""Measures what a command costs: its wall time, and the processor time of all processes that it starts.

    python spent.py RECORD.json COMMAND [ARGUMENT ...]

This process is the command's subreaper: a process that outlives its parent becomes this one's child. So it waits for
every process that the command has started, and the kernel adds up their time (`RUSAGE_CHILDREN`). The wall time ends
with the command itself. A process that ignores SIGCHLD loses the time of its children: Ray's raylet does by default.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_ENDED_WITHIN_S = 30.0
_READ_EVERY_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds that a command took, and processor seconds of all of its processes."""

    wall_s: float
    cpu_s: float


def spent(command: Sequence[str], environ: Mapping[str, str], log: Path) -> Spent:
    """Runs a command with its output in `log`. Raises `RuntimeError` if it fails or leaves processes behind."""
    with tempfile.TemporaryDirectory() as folder, log.open("ab") as output:
        record = Path(folder) / "spent.json"
        code = subprocess.run(
            [sys.executable, __file__, str(record), *command], env=environ, stdout=output, stderr=output
        ).returncode
        if code:
            last = log.read_text(errors="replace").splitlines()[-15:]
            raise RuntimeError("\n".join([f"exit status {code} of {' '.join(command)}", *last]))
        return Spent(**json.loads(record.read_text()))


def spent_so_far(root: psutil.Process) -> float:
    """Processor seconds of a process and of all below it, including those that have ended."""
    found = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            found += sum(process.cpu_times()[:4])  # user, system, and both of the children that it waited for
    return found


class Reader:
    """Reads the times of all processes below this one, again and again, in a thread."""

    def __init__(self) -> None:
        self._family = {os.getpid()}
        self._others: set[int] = set()
        self._ticks: dict[tuple[int, str], int] = {}
        """By number and start, because numbers come again."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """The seconds of all processes, each as it was last read."""
        self._ended.set()
        self._thread.join()
        return sum(self._ticks.values()) / _TICKS_PER_S

    def _run(self) -> None:
        while not self._ended.wait(_READ_EVERY_S):
            self._read()

    def _read(self) -> None:
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  (as cheap as possible)
        self._family &= present
        self._others &= present
        for pid in sorted(present - self._others):  # a parent mostly comes before its children
            try:
                text = Path(f"/proc/{pid}/stat").read_text()
            except OSError:  # it has just ended
                continue
            fields = text.rpartition(")")[2].split()
            if pid not in self._family and int(fields[1]) not in self._family:
                self._others.add(pid)
            elif pid != os.getpid():
                self._family.add(pid)
                self._ticks[pid, fields[19]] = int(fields[11]) + int(fields[12])


def main(record: str, *command: str) -> int:
    """Runs the command, and waits for everything that it started."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
    reader = Reader()
    began = time.monotonic()
    code = subprocess.run(command).returncode
    wall_s = time.monotonic() - began
    while _child_is_left():
        if time.monotonic() - began - wall_s > _ENDED_WITHIN_S:
            left = psutil.Process().children(recursive=True)
            print(f"{_ENDED_WITHIN_S:g} s after the command's end there are still:", file=sys.stderr)
            for process in left:
                print(process.pid, *process.cmdline(), file=sys.stderr)
                process.kill()
            return 1
        time.sleep(0.02)  # the kernel does not say when orphans end
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    waited_for, read = used.ru_utime + used.ru_stime, reader.stop()
    print(f"{wall_s:.2f} s; processor seconds: {waited_for:.2f} waited for, {read:.2f} read", flush=True)
    found = Spent(wall_s=round(wall_s, 3), cpu_s=round(max(waited_for, read), 3))
    Path(record).write_text(json.dumps(found._asdict()))
    return code


def _child_is_left() -> bool:
    """Reaps what has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
