"""SIGTERM that is not meant for the trial.

When Slurm cancels or requeues a job, it sends SIGTERM to all of its processes. If the job is a worker, it then drains
and asks its trials to save at their next reports. A trial that died of the signal would lose its steps since the last
checkpoint. So it ignores SIGTERM until its worker says that it is the sender: there is a byte in the file whose
descriptor the worker passes in `TERM_MARK`. Without the variable nothing changes.

A program that installs its own handler keeps it. Child processes die of SIGTERM as usual.
"""

import os
import signal
import threading
from pathlib import Path
from types import FrameType

from headrace.grants import TERM_MARK, TERM_MARK_FILE

_mark: int | None = None
_pid = 0


def hold() -> None:
    """Ignores SIGTERM of others from now on, if the worker asks for that. May be repeated."""
    global _mark, _pid
    if _mark is None or _pid != os.getpid():
        _mark, _pid = _given(), os.getpid()
    if _mark is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_term)


def hold_again() -> None:
    """Takes SIGTERM back from a training library that has installed its own handler since `hold`."""
    if _mark is not None and _pid == os.getpid() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_term)


def from_worker() -> bool:
    """Whether SIGTERM is for this process: its worker sends it, or there is no mark that would say so."""
    if _mark is None or _pid != os.getpid():
        return True
    try:
        return os.pread(_mark, 1, 0) != b""
    except OSError:
        return True


def descriptors() -> tuple[int, ...]:
    """What a child process that calls `hold` must inherit."""
    return () if _mark is None else (_mark,)


def _given() -> int | None:
    try:
        descriptor = int(os.environ.get(TERM_MARK, ""))
        found = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except (ValueError, OSError):  # none, or it was not passed on
        return None
    # A child inherits the variable alone, and its descriptor of this number may be any file.
    return descriptor if found.startswith(f"/memfd:{TERM_MARK_FILE}") else None


def _on_term(number: int, _: FrameType | None) -> None:
    if from_worker():
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
