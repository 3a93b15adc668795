"""Leases of ask/tell trials are kept while their program lives: renewed in time, and no longer than needed."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script
from test_ask_tell import suggestion

from headrace import AsyncClient, Client
from headrace.bounds.kinds import Span
from headrace.client import ask_tell, renewing
from headrace.client.model import Lease
from headrace.client.renewing import AsyncRenewer, Renewer, _Schedule
from headrace.errors import LeaseStaleError, UnreachableError
from headrace.v1 import event_pb2

LEASE_S = 0.03
"""So short that renewals follow each other immediately: a test waits for as many as it needs."""
WAIT_S = 60.0


@dataclass
class Handle:
    """A trial that a caller holds."""

    lease: Lease = None  # type: ignore[assignment]  # no call is made with it
    held: bool = True


class Clock:
    """The monotonic clock, moved forward by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(renewing.time, "monotonic", lambda: self.now)


def test_a_lease_is_renewed_three_times_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, schedule, handle = Clock(monkeypatch), _Schedule(), Handle()
    schedule.hold(handle, 600)
    assert schedule.wait_s() == 200
    clock.now += 200
    (entry,) = schedule.due()
    schedule.settle(entry, None)
    assert schedule.wait_s() == 200
    clock.now += 200
    schedule.settle(entry, UnreachableError("away"))
    assert schedule.wait_s() == renewing.AGAIN_S, "a scheduler that is away for a moment"
    clock.now += renewing.AGAIN_S
    schedule.settle(entry, LeaseStaleError("given to client 'b'"))
    assert schedule.wait_s() is None


@pytest.mark.parametrize("how", ["left", "forgotten"])
def test_a_trial_that_is_left_or_forgotten_is_renewed_no_longer(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    clock, schedule, handle = Clock(monkeypatch), _Schedule(), Handle()
    schedule.hold(handle, 600)
    clock.now += 200
    if how == "left":
        handle.held = False
    else:
        del handle
        gc.collect()
    assert schedule.due() == []
    assert schedule.wait_s() is None


def counting(count: int, done: Callable[[], None]) -> Callable[[Any], None]:
    """Performs renewals, and signals when `count` were made."""
    made = []

    def run(flow: Any) -> None:
        flow.close()
        made.append(flow)
        if len(made) == count:
            done()

    return run


def test_a_thread_renews_while_the_caller_is_at_work_and_then_ends() -> None:
    enough = threading.Event()
    renewer, handle = Renewer(counting(3, enough.set)), Handle()
    renewer.hold(handle, LEASE_S)
    assert enough.wait(WAIT_S)
    handle.held = False
    others = [thread for thread in threading.enumerate() if thread.name == "headrace-renewing"]
    for thread in others:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    again = threading.Event()
    renewer = Renewer(counting(1, again.set))
    handle.held = True
    renewer.hold(handle, LEASE_S)
    assert again.wait(WAIT_S)
    renewer.close()


async def test_a_task_does_the_same() -> None:
    enough = asyncio.Event()
    count = counting(3, enough.set)

    async def run(flow: Any) -> None:
        count(flow)

    renewer, handle = AsyncRenewer(run), Handle()
    renewer.hold(handle, LEASE_S)
    async with asyncio.timeout(WAIT_S):
        await enough.wait()
    await renewer.close()
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "headrace-renewing"]) == 0


def failing_once(then: Callable[[Any], None], error: Exception) -> Callable[[Any], None]:
    """Performs renewals, the first one with an error."""
    errors = [error]

    def run(flow: Any) -> None:
        if errors:
            flow.close()
            raise errors.pop()
        then(flow)

    return run


@pytest.mark.parametrize("error", [OSError("no file descriptor left"), ValueError("a bug")])
def test_the_thread_outlives_an_error_that_nobody_expected(error: Exception) -> None:
    enough = threading.Event()
    renewer, handle = Renewer(failing_once(counting(2, enough.set), error)), Handle()
    renewer.hold(handle, LEASE_S)
    assert enough.wait(WAIT_S)
    renewer.close()


async def test_the_task_does_too() -> None:
    enough = asyncio.Event()
    then = failing_once(counting(2, enough.set), OSError("no file descriptor left"))

    async def run(flow: Any) -> None:
        then(flow)

    renewer, handle = AsyncRenewer(run), Handle()
    renewer.hold(handle, LEASE_S)
    async with asyncio.timeout(WAIT_S):
        await enough.wait()
    await renewer.close()


def test_without_a_thread_the_trial_is_granted_and_the_next_one_brings_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enough, renewed = threading.Event(), []

    def run(flow: Any) -> None:
        flow.close()
        renewed.append(flow)
        if len(renewed) == 2:
            enough.set()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    renewer, one, two = Renewer(run), Handle(), Handle()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        renewer.hold(one, LEASE_S)
    renewer.hold(two, 3600)
    assert enough.wait(WAIT_S)
    renewer.close()


FORK = """
import os, threading
from headrace.client.renewing import Renewer

class Handle:
    held, lease = True, None

def run(flow):
    flow.close()
    renewed.set()

renewed = threading.Event()
renewer, parents = Renewer(run), Handle()
renewer.hold(parents, 3600)
other = threading.Thread(target=renewer._changed.acquire)
other.start()
other.join()
child = os.fork()
if child == 0:
    own = Handle()
    renewer.hold(own, 0.03)
    os._exit(0 if renewed.wait(60) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert not renewed.is_set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_renews_what_it_asks_for() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=2 * WAIT_S)


@pytest.fixture
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients may ask for less than a second."""
    monkeypatch.setattr(ask_tell, "LEASE_TIME", Span(0, 60))


@pytest.mark.usefixtures("short_leases")
def test_a_client_renews_what_it_asked_for_until_it_ends(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    fake.decisions.append(event_pb2.Decision(action=event_pb2.DECISION_ACTION_STOP))
    asked = client.study("digits").ask(lease_s=LEASE_S)
    assert asked is not None
    wait_for(lambda: len(fake.requests["RenewTrial"]) >= 2)
    sent = fake.requests["RenewTrial"][0].lease
    assert (sent.lease_id, sent.trial, sent.attempt) == ("lease-1", "studies/digits/trials/5", 3)
    assert asked.held
    asked.report(3, val_loss=1.0)
    assert not asked.held


@pytest.mark.usefixtures("short_leases")
async def test_the_async_client_does_too(fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    async with AsyncClient(fake.address) as client:
        asked = await client.study("digits").ask(lease_s=LEASE_S)
        assert asked is not None
        async with asyncio.timeout(WAIT_S):
            while len(fake.requests["RenewTrial"]) < 2:
                await asyncio.sleep(0.01)
        await asked.complete()
        assert not asked.held


def wait_for(condition: Callable[[], bool]) -> None:
    passed = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        passed.wait(0.01)
    raise AssertionError("it never happened")
