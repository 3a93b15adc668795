"""Keeps the leases of asked trials while their program lives.

    asked ─→ renewed three times per lease ─→ until the trial is over for this caller, or no longer referenced

A lease determines how soon others get a trial whose program died. An evaluation may take longer, so the client
renews the lease: in a thread of the blocking client, or a task of the async one. Neither keeps a handle alive. A
program that is stopped, or holds Python's lock for longer than the lease, does not lose its trial by that alone:
its next message renews the lease, unless others were given the trial meanwhile. The server's answer to that
message says which.

The server's row is authoritative; the local clock only decides when to call.
"""

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from headrace.client import convert
from headrace.client.flow import Flow, rpc
from headrace.client.model import Lease
from headrace.errors import HeadraceError
from headrace.v1 import study_pb2 as pb

logger = logging.getLogger("headrace.client")

SHARE = 3
"""How often a lease is renewed within its duration."""
AGAIN_S = 5.0
"""How long after a temporary failure the renewal is retried; sooner if the lease is short."""


class Held(Protocol):
    """A trial that a caller runs."""

    held: bool

    @property
    def lease(self) -> Lease: ...


class _Entry:
    def __init__(self, handle: Held, lease_s: float) -> None:
        self._handle = weakref.ref(handle)
        self.lease = handle.lease
        self.every_s = lease_s / SHARE
        self.due = time.monotonic() + self.every_s
        self._failed = False

    @property
    def held(self) -> bool:
        handle = self._handle()
        return handle is not None and handle.held

    def settle(self, failure: Exception | None) -> bool:
        """Set when the next renewal is due, after one with this result. Returns whether to renew at all."""
        if isinstance(failure, HeadraceError):
            if not failure.retryable:
                return False  # over, or the server cannot renew: the next report shows which
        elif failure is not None and not self._failed:
            logger.warning("a lease was not renewed, retrying", exc_info=failure)
        self._failed = failure is not None
        again_s = self.every_s if failure is None else min(self.every_s, AGAIN_S)
        self.due = time.monotonic() + again_s
        return True


class _Schedule:
    """Which leases to renew, and when."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []

    def hold(self, handle: Held, lease_s: float) -> None:
        self.entries.append(_Entry(handle, lease_s))

    def wait_s(self) -> float | None:
        """How long until the next renewal; None if there is nothing to renew."""
        self.entries = [entry for entry in self.entries if entry.held]
        if not self.entries:
            return None
        return max(0.0, min(entry.due for entry in self.entries) - time.monotonic())

    def due(self) -> list[_Entry]:
        now = time.monotonic()
        return [entry for entry in self.entries if entry.due <= now and entry.held]

    def settle(self, entry: _Entry, failure: Exception | None) -> None:
        if not entry.settle(failure) and entry in self.entries:
            self.entries.remove(entry)


def renew(lease: Lease) -> Flow[None]:
    """Renews the lease: its holder is still at work."""
    yield from rpc(pb.RenewTrialResponse, pb.RenewTrialRequest(lease=convert.lease_to_proto(lease)))


class Renewer:
    """Renews in a thread, which exists only while there is something to renew.

    A forked child starts with nothing to renew: its parent renews the leases that the parent asked for.
    """

    def __init__(self, run: Callable[[Flow[None]], None]) -> None:
        self._run = run
        self._closed = False
        self.begin()
        _renewers.add(self)

    def begin(self) -> None:
        """Start with nothing to renew and no thread. A thread that held the lock does not exist in this process."""
        self._schedule = _Schedule()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def hold(self, handle: Held, lease_s: float) -> None:
        """Renew the lease of a trial from now on. Raises nothing: the trial is granted, even if no thread can be
        started.
        """
        with self._changed:
            self._schedule.hold(handle, lease_s)
            if self._thread is not None and self._thread.is_alive():
                self._changed.notify()
                return
            thread = threading.Thread(target=self._work, name="headrace-renewing", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit, or Python is about to exit
                logger.warning("leases are not renewed until the next ask: %s", error)
            else:
                self._thread = thread

    def close(self) -> None:
        """Stop renewing."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                wait_s = self._schedule.wait_s()
                if self._closed or wait_s is None:
                    self._thread = None
                    return
                if wait_s:
                    self._changed.wait(wait_s)
                    continue
                due = self._schedule.due()
            for entry in due:
                failure = None
                try:
                    self._run(renew(entry.lease))
                except Exception as error:  # noqa: BLE001  # whatever it is, other leases are renewed
                    failure = error
                if self._closed:  # gRPC raises ValueError if its channel has just been closed
                    return
                with self._changed:
                    self._schedule.settle(entry, failure)


_renewers: weakref.WeakSet[Renewer] = weakref.WeakSet()


def _forked() -> None:
    for renewer in list(_renewers):
        renewer.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class AsyncRenewer:
    """Renews in a task, which exists only while there is something to renew."""

    def __init__(self, run: Callable[[Flow[None]], Awaitable[None]]) -> None:
        self._run = run
        self._schedule = _Schedule()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    def hold(self, handle: Held, lease_s: float) -> None:
        """Renew the lease of a trial from now on."""
        self._schedule.hold(handle, lease_s)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="headrace-renewing")

    async def close(self) -> None:
        """Stop renewing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _work(self) -> None:
        while (wait_s := self._schedule.wait_s()) is not None:
            if wait_s:
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait_s)
                continue
            for entry in self._schedule.due():
                failure = None
                try:
                    await self._run(renew(entry.lease))
                except Exception as error:  # noqa: BLE001  # whatever it is, other leases are renewed
                    failure = error
                self._schedule.settle(entry, failure)
