"""A process of a pool: one question at a time, from bytes to bytes, within its memory limit."""

import os
import pickle
import resource
import signal
from collections.abc import Callable
from enum import StrEnum
from math import ceil
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.errors import HeadraceError, InternalError, TooLargeError
from headrace_services.sandbox.limits import Limits

Tell = Callable[[bytes], None]
"""Sends progress."""
Run = Callable[[str, bytes, Tell], bytes]
"""Answers a question, given what to do and the data. Raises HeadraceError."""

_NICENESS = 5
"""Work that a caller made large may take longer; everybody else's calls may not."""

_ALARM_S = 2
"""How long after its time limit a call ends by itself. The parent ends it earlier, unless the parent was killed."""


class Answer(StrEnum):
    """What a process sends: READY once, then for each question any number of PROGRESS and one of the others."""

    READY = "ready"
    PROGRESS = "progress"
    RESULT = "result"
    ERROR = "error"


def serve(pipe: Connection, load: Callable[[], Run], limits: Limits) -> None:
    """The main function of the process: answer until the pipe ends. `load` imports the heavy libraries."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes the pipe
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    os.nice(_NICENESS)
    run = load()
    _limit_memory(limits.memory_bytes)
    try:
        pipe.send_bytes(pickle.dumps((Answer.READY, b"")))
        while True:
            task, request = pickle.loads(pipe.recv_bytes())  # noqa: S301  (our own parent wrote it)
            signal.alarm(ceil(limits.time_s) + _ALARM_S)
            answer = _answer(run, task, request, limits.memory_bytes, _teller(pipe))
            signal.alarm(0)
            pipe.send_bytes(pickle.dumps(answer))
    except (EOFError, OSError):
        return


def _teller(pipe: Connection) -> Tell:
    return lambda progress: pipe.send_bytes(pickle.dumps((Answer.PROGRESS, progress)))


def _answer(run: Run, task: str, request: bytes, memory_bytes: int, tell: Tell) -> tuple[Answer, bytes]:
    try:
        return Answer.RESULT, run(task, request, tell)
    except HeadraceError as error:
        return Answer.ERROR, pickle.dumps(error)
    except MemoryError:
        pass  # the exception releases what the call held: the error message needs memory too
    except Exception as error:  # noqa: BLE001  (a defect ends this call, not the process)
        failed = InternalError(f"the server failed on this call: {type(error).__name__}: {error}")
        return Answer.ERROR, pickle.dumps(failed)
    return Answer.ERROR, pickle.dumps(too_much_memory(memory_bytes))


def too_much_memory(memory_bytes: int) -> TooLargeError:
    """The error for a call that needs more memory than one call may have."""
    return TooLargeError(f"the answer needs more than {memory_bytes / 2**20:.0f} MiB of memory")


def _limit_memory(memory_bytes: int) -> None:
    """Allow the process this much beyond what its libraries use, and no more than it may have anyway."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    most = pages * resource.getpagesize() + memory_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [most, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
