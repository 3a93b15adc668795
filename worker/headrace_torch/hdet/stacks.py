"""Where a thread of this process is, read while all its threads run.

`sys._current_frames` makes objects while it holds a lock of the interpreter. On Python 3.11 a garbage collection
may start there, whose finalizers need that lock: the process then hangs for ever (python/cpython#106883). So the
collector's threshold is 0 meanwhile. `faulthandler` takes no lock, but crashes if a thread is just being created.
"""

import gc
import operator
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final, NamedTuple

_MOST: Final = 100
_LOOK: Final[tuple[Callable[[], Any], ...]] = (partial(gc.set_threshold, 0), sys._current_frames)
_looking: Final = threading.Lock()


class Line(NamedTuple):
    """One call on a thread's stack."""

    file: str
    line: int
    function: str


def stack_of(thread: int) -> tuple[Line, ...]:
    """The innermost 100 calls of a thread, which is given as by `threading.get_ident`; the innermost call comes
    first.

    Empty if the thread has ended or runs no Python.
    """
    frames: dict[int, FrameType]
    with _looking:
        threshold = gc.get_threshold()
        try:
            _, frames = map(operator.call, _LOOK)  # one instruction, within which no other thread runs Python
        finally:
            gc.set_threshold(*threshold)
    frame, found = frames.get(thread), list[Line]()
    del frames
    while frame is not None and len(found) < _MOST:
        code = frame.f_code
        found.append(Line(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name))
        frame = frame.f_back
    return tuple(found)


def formatted(stack: Sequence[Line]) -> str:
    """A stack as tracebacks show it, with the source lines, the innermost call last."""
    return "".join(traceback.format_list([(*call, None) for call in reversed(stack)]))
