"""The exit of a trial's process: everything that a program may expect at its end, without tearing down the
interpreter.

A slot's next trial waits for the previous process to end. With PyTorch imported, the interpreter spends at least
120 ms of processor time on taking its modules apart, for memory that the kernel reclaims in 15 ms. So a trial's
process ends like a child of `multiprocessing`: it waits for threads, runs the `atexit` functions, flushes output
and open files, and then exits at once.

What does not happen: `__del__` of objects that modules still hold, and exit handlers of C libraries. A program
that relies on either sets `HEADRACE_ORDERLY_EXIT=1` in its template's environment.
"""

import atexit
import ctypes
import gc
import io
import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

ORDERLY = "HEADRACE_ORDERLY_EXIT"


_PATIENCE_S = 2.0
"""How long the process waits for threads before it says so."""
_FILES_S = 5.0
"""How long open files may take to close: a pipe that nobody reads must not block the slot."""
_before: list["weakref.ref[io.IOBase]"] = []


def remember_files() -> None:
    """Records the files that are open after the program's import, because frozen objects are hidden from the
    collector.
    """
    _before[:] = [weakref.ref(file) for file in _files()]


def leave(status: int) -> NoReturn:
    """Ends the process with a status."""
    if os.environ.get(ORDERLY, "") not in ("", "0"):
        gc.unfreeze()  # otherwise frozen objects are skipped, with unflushed files
        sys.exit(status)
    # As multiprocessing ends its children: executors and threads first, then registered functions.
    notice = threading.Timer(_PATIENCE_S, _tell_of_threads)
    notice.daemon = True
    notice.start()
    _do(threading._shutdown)  # type: ignore[attr-defined]  # typeshed leaves it out
    notice.cancel()
    _do(atexit._run_exitfuncs)
    closing = threading.Thread(target=_close_files, daemon=True)
    closing.start()
    closing.join(_FILES_S)
    with suppress(Exception):
        ctypes.CDLL(None).fflush(None)
    for stream in (sys.stdout, sys.stderr):
        _do(stream.flush)
    os._exit(status)


def _tell_of_threads() -> None:
    waited = [
        one.name for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()
    ]
    if not waited:
        return
    print(
        f"headrace: the trial is over, but its process waits for the threads {', '.join(waited)}, and is killed after "
        "trial.grace_s; end them before, or start them with daemon=True",
        file=sys.stderr,
        flush=True,
    )


def _do(step: Callable[[], object]) -> None:
    """An error during the exit is printed and does not prevent the rest."""
    try:
        step()
    except BaseException:  # noqa: BLE001 - it is printed, and there is no caller
        with suppress(Exception):
            traceback.print_exc()


def _close_files() -> None:
    """Closes files that are still open, outermost first: text, compressed files, buffers, descriptors."""
    found = {id(file): file for file in _files()}
    found |= {id(file): file for file in (known() for known in _before) if file is not None}
    for stream in (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__):
        for one in (
            stream,
            getattr(stream, "buffer", None),
            getattr(getattr(stream, "buffer", None), "raw", None),
        ):
            found.pop(id(one), None)
    for file in sorted(found.values(), key=_depth):
        with suppress(Exception):
            if not file.closed and file.writable():
                _do(file.close)


def _depth(file: io.IOBase) -> int:
    if isinstance(file, io.TextIOBase):
        return 0
    if type(file).__module__ not in ("_io", "io"):  # gzip, bz2 and similar ones write to others of these
        return 1
    return 2 if isinstance(file, io.BufferedIOBase) else 3


def _files() -> list[io.IOBase]:
    """Files among the collector's objects. They are found by type, because some objects are proxies for others
    that are gone.
    """
    kinds: dict[type, bool] = {}
    found = []
    for one in gc.get_objects():
        kind = type(one)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, io.IOBase)
        if kinds[kind]:
            found.append(one)
    return found
