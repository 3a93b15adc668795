"""The way out of a trial's process: all that a program may expect of its end, and no dismantling of the interpreter.

A slot's next trial waits for the end of the process before. With PyTorch imported the interpreter spends 120 ms of
processor time and more on taking its modules apart, for memory that the kernel gives back in 15. So a trial's process
ends as a child of `multiprocessing` does: threads are waited for, what was registered with `atexit` runs, output and
open files are flushed, and then the process is gone.

What does not happen: `__del__` of objects that modules still hold, and what C libraries do at `exit`. A program that
counts on either sets `HEADRACE_ORDERLY_EXIT=1` in its template's environment.
"""

import atexit
import ctypes
import gc
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

ORDERLY = "HEADRACE_ORDERLY_EXIT"


def leave(status: int) -> NoReturn:
    """Ends the process with a status."""
    if os.environ.get(ORDERLY, "") not in ("", "0"):
        gc.unfreeze()  # else what is frozen is left as it is, with files that were not flushed
        sys.exit(status)
    _do(threading._shutdown)  # type: ignore[attr-defined]
    _do(atexit._run_exitfuncs)
    for file in _open_files():
        _do(file.flush)
    with suppress(Exception):
        ctypes.CDLL(None).fflush(None)
    for stream in (sys.stdout, sys.stderr):
        _do(stream.flush)
    os._exit(status)


def _do(step: Callable[[], object]) -> None:
    """What fails on the way out is said and keeps nothing else from happening."""
    try:
        step()
    except BaseException:  # noqa: BLE001
        with suppress(Exception):
            traceback.print_exc()


def _open_files() -> Iterator[io.IOBase]:
    """Files that nobody closed: those opened since the program's import, and those that its own modules hold.

    What was there before is not the collector's any more (`gc.freeze`), and what is installed are too many to look at.
    """
    held = [one for one in gc.get_objects() if isinstance(one, io.IOBase)]
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and not file.startswith((sys.prefix, sys.base_prefix)):
            held += [one for one in vars(module).values() if isinstance(one, io.IOBase)]
    # A text stream hands its text to the buffer below, so streams come first.
    held.sort(key=lambda file: not isinstance(file, io.TextIOBase))
    for file in held:
        with suppress(Exception):
            if not file.closed and file.writable():
                yield file
