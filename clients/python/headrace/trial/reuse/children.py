"""Child processes that a trial left running, orphans of its children included.

Ended ones are reaped. The pool that joblib keeps for the next call is ended: the next trial starts another, as a
fresh process would. The resource trackers of multiprocessing and joblib stay: they only wait for this process.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_SUBREAPER: Final = 36
"""Of `prctl`: the children of a child that ends become those of this process. Otherwise nothing would find a
server that a shell has started in the background."""
_TRACKERS: Final = ("multiprocessing.resource_tracker", "joblib.externals.loky.backend.resource_tracker")


class Children:
    """The child processes, as they are to be."""

    def __init__(self) -> None:
        self._before: set[int] = set()

    def take(self) -> None:
        """From now on, those that run now are to be."""
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._before = set(_children())

    def left(self) -> str:
        """The first one that runs and did not before, and the remedy; empty if there is none."""
        if not _has_children():
            return ""
        _end_pool_of_joblib()
        self._reap()
        spared = {*self._before, *trackers()}
        for process in _children():
            if process not in spared:
                return f"it left the process {_command(process)} running: end it before the function returns"
        return ""

    def _reap(self) -> None:
        """Waits for those that have ended: first as the objects do that started them."""
        if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
            multiprocessing.active_children()
        if (subprocess := sys.modules.get("subprocess")) is not None:
            subprocess._cleanup()
        for process in _children():
            if process not in self._before:
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)


def trackers() -> list[int]:
    """The process ids of the resource trackers."""
    return [one._pid for one in _trackers()]


def descriptors_of_trackers() -> set[int]:
    """The pipes by which the resource trackers notice the end of this process."""
    return {one._fd for one in _trackers()}


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


def _end_pool_of_joblib() -> None:
    module: Any = sys.modules.get("joblib.externals.loky.reusable_executor")
    if module is not None and module._executor is not None:
        end = getattr(
            module._executor, "terminate", module._executor.shutdown
        )  # joblib's removes its files, too
        end(kill_workers=True)
        module._executor = None
        gc.collect()  # of its pipes


def _trackers() -> Iterator[Any]:
    for name in _TRACKERS:
        tracker = getattr(sys.modules.get(name), "_resource_tracker", None)
        if tracker is not None and tracker._pid is not None:
            yield tracker


def _command(process: int) -> str:
    with suppress(OSError):
        name = Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
        return f"{name} ({process})"  # its arguments may be secrets
    return str(process)
