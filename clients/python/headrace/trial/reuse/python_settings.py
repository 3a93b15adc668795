"""Settings of Python and of the process that programs often change."""

import contextlib
import gc
import locale
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.trial.reuse import logging_settings
from headrace.trial.reuse.setting import Same, Setting, attribute, listed

_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS: Final = tuple(
    getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")
)
_SMALLEST: Final = [sys.float_info.min, 2.0]
"""A normal number whose half is not; in a list, so that it is divided at run time."""


def settings() -> Iterator[Setting]:
    """All of them, in the order in which they are restored."""
    yield attribute(os, "environ")
    yield Setting("os.environ", lambda: dict(os.environ), _write_environment)
    yield Setting("the working directory", _read_folder, lambda saved: os.chdir(saved[0]))
    yield Setting("the umask", _read_umask, os.umask)
    yield Setting("a signal handler", _read_handlers, _write_handlers)
    yield Setting("the signal wakeup descriptor", _read_wakeup, signal.set_wakeup_fd)
    yield Setting("a timer (signal.setitimer)", _read_timers, _write_timers)
    yield Setting(
        "the signal mask",
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda saved: signal.pthread_sigmask(signal.SIG_SETMASK, saved),
    )
    yield Setting("a resource limit", _read_limits, _write_limits)
    if hasattr(os, "sched_getaffinity"):
        yield Setting(
            "the processor affinity",
            lambda: os.sched_getaffinity(0),
            lambda saved: os.sched_setaffinity(0, saved),
        )
    yield Setting(
        "the niceness",
        lambda: os.getpriority(os.PRIO_PROCESS, 0),
        lambda saved: os.setpriority(os.PRIO_PROCESS, 0, saved),
    )
    yield from map(_stream, ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"))
    for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook"):
        yield attribute(sys, name)
    yield attribute(threading, "excepthook")
    for name in ("argv", "path", "meta_path", "path_hooks"):
        yield listed(sys, name)
    yield Setting("sys.settrace", _same(sys.gettrace), lambda saved: sys.settrace(saved.value))
    yield Setting("sys.setprofile", _same(sys.getprofile), lambda saved: sys.setprofile(saved.value))
    yield Setting(
        "threading.settrace", _same(threading.gettrace), lambda saved: threading.settrace(saved.value)
    )
    yield Setting(
        "threading.setprofile", _same(threading.getprofile), lambda saved: threading.setprofile(saved.value)
    )
    yield Setting("sys.setrecursionlimit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield Setting("sys.setswitchinterval", sys.getswitchinterval, sys.setswitchinterval)
    yield Setting("sys.set_int_max_str_digits", sys.get_int_max_str_digits, sys.set_int_max_str_digits)
    yield attribute(sys, "dont_write_bytecode")
    yield Setting("threading.stack_size", threading.stack_size, threading.stack_size)
    yield Setting("gc.enable", gc.isenabled, lambda saved: gc.enable() if saved else gc.disable())
    yield Setting("gc.set_threshold", gc.get_threshold, lambda saved: gc.set_threshold(*saved))
    yield Setting("gc.set_debug", gc.get_debug, gc.set_debug)
    yield listed(gc, "callbacks")
    yield listed(warnings, "filters", forget_warnings)
    yield attribute(warnings, "showwarning")
    yield from logging_settings.settings()
    yield Setting(
        "the locale",
        lambda: locale.setlocale(locale.LC_ALL),
        lambda saved: locale.setlocale(locale.LC_ALL, saved),
    )
    yield Setting("the mode for denormal numbers", _flushes_denormals, _write_flushing)


def _same(read: Any) -> Any:
    def found() -> Same:
        value = read()
        return Same(id(value), value)

    return found


def _stream(name: str) -> Setting:
    """A standard stream. What is still in the buffer of one that takes its place is written first."""
    plain = attribute(sys, name)

    def write(saved: Same) -> None:
        with contextlib.suppress(Exception):
            getattr(sys, name).flush()
        plain.write(saved)

    return Setting(plain.name, plain.read, write)


def _write_environment(saved: Mapping[str, str]) -> None:
    zone = os.environ.get("TZ")
    for name in [name for name in os.environ if name not in saved]:
        del os.environ[name]
    for name, value in saved.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    if zone != os.environ.get("TZ"):
        time.tzset()


def _read_folder() -> tuple[str, int, int]:
    try:
        found = os.stat(".")  # noqa: PTH116 - read after each trial
        return os.getcwd(), found.st_dev, found.st_ino  # noqa: PTH109
    except OSError:  # it was deleted
        return "", 0, 0


def _read_umask() -> int:
    with open("/proc/self/status", "rb") as status:  # noqa: PTH123 - each time
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    now = os.umask(0o077)  # other threads may be creating files at this moment
    os.umask(now)
    return now


def _read_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _write_handlers(saved: Mapping[int, Any]) -> None:
    for number, handler in saved.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


def _read_wakeup() -> int:
    now = signal.set_wakeup_fd(-1)
    if now != -1:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            signal.set_wakeup_fd(now, warn_on_full_buffer=False)
    return now


def _read_timers() -> tuple[bool, ...]:
    """Whether each timer runs."""
    return tuple(signal.getitimer(one)[0] > 0 for one in _TIMERS)


def _write_timers(saved: tuple[bool, ...]) -> None:
    for timer, ran in zip(_TIMERS, saved, strict=True):
        if not ran:
            signal.setitimer(timer, 0)


def _read_limits() -> tuple[tuple[int, int], ...]:
    return tuple(resource.getrlimit(one) for one in _LIMITS)


def _write_limits(saved: tuple[tuple[int, int], ...]) -> None:
    for limit, value in zip(_LIMITS, saved, strict=True):
        if resource.getrlimit(limit) != value:
            resource.setrlimit(limit, value)


def forget_warnings() -> None:
    """Warnings are shown again, although they are only shown once."""
    with warnings.catch_warnings():
        pass


def _flushes_denormals() -> bool:
    """Whether the processor replaces numbers near 0 by 0, in this thread."""
    smallest, two = _SMALLEST
    return smallest / two == 0.0


def _write_flushing(saved: bool) -> None:
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(saved)
