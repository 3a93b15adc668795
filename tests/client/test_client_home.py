"""Clients that find their scheduler through the home: `headrace up` starts, is killed, and restarts on another
port."""

import asyncio
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace import AsyncClient, Client
from headrace.client import watch
from headrace.errors import UnreachableError
from headrace.home import ADDRESS_FILE, DEFAULT_ADDRESS, LOCK_FILE, NotRunningError, StartingError, address


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, the only place that says where the scheduler is."""
    monkeypatch.delenv("HEADRACE_ADDRESS", raising=False)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def other(script: Script) -> Iterator[FakeStudyService]:
    """The scheduler after its restart."""
    service = FakeStudyService()
    service.add(script)
    yield service
    service.stop()


def test_while_up_starts_nobody_is_sent_to_the_default_address(home: Path) -> None:
    lock = home / LOCK_FILE
    lock.write_text("4711\n")
    with pytest.raises(NotRunningError, match=f"No `headrace up` runs in {home}"):
        Client()  # it was killed: the lock went with it
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StartingError, match=f"is still starting in {home}"):
            Client()
        assert address("elsewhere:1") == "elsewhere:1"
        (home / ADDRESS_FILE).write_text("127.0.0.1:7777\n")
        assert address() == "127.0.0.1:7777"


def test_only_who_names_no_home_is_sent_to_the_default_address(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotRunningError, match="HEADRACE_HOME"):
        Client()
    monkeypatch.setenv("HEADRACE_ADDRESS", "elsewhere:1")
    assert address() == "elsewhere:1"
    monkeypatch.delenv("HEADRACE_ADDRESS")
    monkeypatch.delenv("HEADRACE_HOME")
    monkeypatch.setenv("HOME", str(home))
    assert address() == DEFAULT_ADDRESS


def test_a_client_follows_its_home_to_another_port(
    home: Path, fake: FakeStudyService, other: FakeStudyService, script: Script
) -> None:
    fake.add(script, shown=1)
    fake.watch_moves_on = False
    (home / ADDRESS_FILE).write_text(f"{fake.address}\n")
    with Client(timeout_s=60) as client:
        updates = client.study("digits").watch()
        seen = len(next(updates).events)
        (home / ADDRESS_FILE).write_text(f"{other.address}\n")
        fake.stop()
        assert seen + sum(len(update.events) for update in updates) == len(script.events)
        assert client.study("digits").wait().name == "digits"
        assert client.address == other.address


def test_an_async_client_follows_its_home_and_an_explicit_address_is_kept(
    home: Path, fake: FakeStudyService, other: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    (home / ADDRESS_FILE).write_text(f"{fake.address}\n")

    async def run() -> None:
        async with AsyncClient(timeout_s=60) as client, AsyncClient(fake.address, timeout_s=2) as strict:
            assert (await strict.study("digits").status()).name == "digits"
            assert (await client.study("digits").status()).name == "digits"
            (home / ADDRESS_FILE).write_text(f"{other.address}\n")
            fake.stop()
            assert (await client.study("digits").status()).name == "digits"
            with pytest.raises(UnreachableError, match=fake.address):
                await strict.study("digits").status()

    asyncio.run(run())


def test_a_wait_that_nobody_answers_says_so_once(
    fake: FakeStudyService,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(watch, "WARN_AFTER_S", 0.3)
    monkeypatch.setattr(watch, "GIVE_UP_AFTER_S", 3.0)
    fake.add(script, shown=1)
    fake.watch_moves_on = False
    with Client(fake.address, timeout_s=60) as client:
        updates = client.study("digits").watch()
        next(updates)
        fake.stop()
        with caplog.at_level(logging.WARNING), pytest.raises(UnreachableError):
            list(updates)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "headrace.client"]
    assert f"answers at {fake.address}" in said
    assert "Still waiting for study digits" in said
