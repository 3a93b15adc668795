"""What a trial left behind that another trial must not meet: threads, processes, files, exit functions, memory.

Each reason is a phrase about the trial that says what to do. Threads of libraries written in C are none of
Python's, and stay.
"""

import atexit
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from headrace.trial.reuse.children import Children, descriptors_of_trackers
from headrace.trial.reuse.descriptors import Descriptors
from headrace.trial.reuse.memory import Memory
from headrace.trial.reuse.own import is_own, is_own_file, is_own_module

_PATIENCE_S: Final = 0.2
"""How long threads have to end that are about to."""
_HARMLESS: Final = ("tqdm", "headrace", "grpc")
"""Libraries whose threads only watch: tqdm's redraws the bars that exist."""


class Leftovers:
    """What there was before the trial."""

    def __init__(self, daemon: str = "") -> None:
        """`daemon` is the address of the worker daemon."""
        self._descriptors = Descriptors(daemon)
        self._children = Children()
        self._memory = Memory()
        self._exits = Exits()
        self._threads: list[threading.Thread] = []
        self._loop: Any = None
        self._had_cuda = False

    def take(self) -> None:
        """From now on, what there is may stay."""
        self._exits.watch()
        self._children.take()
        self._memory.take()
        self._loop = _event_loop()
        self._had_cuda = _has_cuda()
        self.take_connections()

    def take_connections(self) -> None:
        """The descriptors and threads that were made for the next trial may stay, too."""
        self._threads = threading.enumerate()
        self._descriptors.take()

    def loop_left(self) -> str:
        """Why the event loop of asyncio ends the process; to be asked before settings are restored."""
        loop = _event_loop()
        if loop is None or loop is self._loop or loop.is_closed():
            return ""
        return "it left an event loop of asyncio open: use asyncio.run(), or close the loop"

    def find(self) -> list[str]:
        """All that was left, in plain words."""
        group: Any = sys.modules.get("torch.distributed")
        found = [
            "it left a process group open: call torch.distributed.destroy_process_group()"
            if group is not None and group.is_available() and group.is_initialized()
            else "",
            self._children.left(),
            *self._threads_left(),
            self._exits.left(),
            self._descriptors.changed(
                cuda_began=_has_cuda() and not self._had_cuda, known=descriptors_of_trackers()
            ),
            self._memory.grown(),
        ]
        self._had_cuda = _has_cuda()
        return [one for one in found if one]

    def _threads_left(self) -> list[str]:
        until = time.monotonic() + _PATIENCE_S
        left = [one for one in threading.enumerate() if one not in self._threads and not _is_harmless(one)]
        for one in left:
            one.join(max(0.0, until - time.monotonic()))
        return [
            f"it left the thread {one.name!r} running: join it before the function returns"
            for one in left
            if one.is_alive()
        ]


class Exits:
    """The functions that the user's own code has registered with `atexit` since it was watched."""

    def __init__(self) -> None:
        self._registered: list[str] = []
        self._count = 0
        self._register: Callable[..., Any] = atexit.register

    def watch(self) -> None:
        """Records registrations from now on."""
        self._register = atexit.register
        self._count = atexit._ncallbacks()

        def register(function: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_own(function) or is_own_file(sys._getframe(1).f_code.co_filename):
                self._registered.append(getattr(function, "__qualname__", repr(function)))
            return self._register(function, *args, **kwargs)

        atexit.register = register

    def left(self) -> str:
        """The first such function, and the remedy; empty if there is none."""
        if self._registered:
            return f"it registered {self._registered[0]} with atexit: {_CALL_IT}"
        before, self._count = self._count, atexit._ncallbacks()
        if self._count > before and _is_held_by_users(self._register):
            return f"it registered a function with atexit: {_CALL_IT}"
        return ""


_CALL_IT: Final = (
    "call it in a `finally` block instead, because this process runs other trials before it ends"
)


def _is_held_by_users(function: Any) -> bool:
    """Whether a module of the user's own has imported a function by name, so that it is called unnoticed."""
    own = (module for module in list(sys.modules.values()) if is_own_module(module))
    return any(value is function for module in own for value in list(vars(module).values()))


def _is_harmless(thread: threading.Thread) -> bool:
    if thread is threading.current_thread() or isinstance(thread, threading._DummyThread):
        return True
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return any(module.partition(".")[0] in _HARMLESS for module in modules)


def _event_loop() -> Any:
    """The event loop that asyncio has for this thread."""
    events = sys.modules.get("asyncio.events")
    policy = getattr(events, "_event_loop_policy", None)
    return getattr(getattr(policy, "_local", None), "_loop", None)


def _has_cuda() -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
