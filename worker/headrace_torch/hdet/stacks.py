"""Where a thread of this process is, read without a lock.

`sys._current_frames` makes objects while it holds a lock of the interpreter. On Python 3.11 a garbage collection may
start there, whose finalizers need that lock: then the process stands for good (python/cpython#106883). What
`faulthandler` writes makes no object and takes no lock.
"""

import faulthandler
import re
import tempfile
import traceback
from collections.abc import Sequence
from typing import Final, NamedTuple

_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x(?P<ident>[0-9a-f]+)\b.*:")
_LINE: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


class Line(NamedTuple):
    """One call on a thread's stack."""

    file: str
    line: int
    function: str


def stack_of(thread: int) -> tuple[Line, ...]:
    """The innermost 100 calls of a thread, named as by `threading.get_ident`, the innermost one first.

    Empty where the thread has ended or runs no Python, and where 100 threads are younger than it.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode("ascii", errors="replace")
    found, ours = [], False
    for line in text.splitlines():
        if head := _THREAD.match(line):
            ours = int(head["ident"], 16) == thread
        elif ours and (call := _LINE.match(line)):
            found.append(Line(_plain(call["file"]), int(call["line"]), _plain(call["function"])))
    return tuple(found)


def formatted(stack: Sequence[Line]) -> str:
    """A stack as tracebacks show it, with the source lines, the innermost call last."""
    return "".join(traceback.format_list([(*call, None) for call in reversed(stack)]))


def _plain(text: str) -> str:
    """A name with what is not ASCII, which `faulthandler` writes as escapes."""
    return text.encode("ascii", errors="replace").decode("unicode_escape") if "\\" in text else text
