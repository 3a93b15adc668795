"""A scheduler that starts before its database waits for it, says so, and gives up in time; it can be stopped
meanwhile."""

import asyncio
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from headrace.errors import DatabaseUnavailableError
from headrace_services.scheduler import preparing
from headrace_services.scheduler.preparing import prepare
from headrace_services.scheduler.store.database import open_engine


class LateDatabase:
    """A database at a socket that is not there yet."""

    def __init__(self, url: str, folder: Path) -> None:
        real = make_url(url)
        host, port = str(real.query.get("host") or real.host), real.query.get("port") or real.port or 5432
        name = f".s.PGSQL.{port}"
        self._real, self._socket = Path(host) / name, folder / name
        self.url = real.set(host=None, query={**real.query, "host": str(folder)}).render_as_string(
            hide_password=False
        )

    def come(self) -> None:
        """Start answering."""
        self._socket.symlink_to(self._real)


@pytest.fixture
def late(database_url: str) -> Iterator[LateDatabase]:
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:  # the path of a socket has 107 bytes at most
        yield LateDatabase(database_url, Path(folder))


async def test_a_database_that_is_away_is_waited_for(
    late: LateDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preparing, "PAUSE_S", 0.01)
    engine = open_engine(late.url)
    caplog.set_level("WARNING")
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(prepare(engine, migrates=True, wait_s=1000))
            while not caplog.messages:
                await asyncio.sleep(0.01)
            assert not waiting.done()
            late.come()
        (said,) = caplog.messages
        assert re.search(r"cannot reach Postgres at .*waiting for it for up to 1000 s", said, re.DOTALL)
    finally:
        await engine.dispose()


async def test_one_that_does_not_come_in_time_is_an_error(
    late: LateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "PAUSE_S", 0.01)
    engine = open_engine(late.url)
    with pytest.raises(DatabaseUnavailableError, match="cannot reach Postgres"):
        await prepare(engine, migrates=True, wait_s=0.1)
    await engine.dispose()


async def test_one_that_answers_and_refuses_is_not_waited_for(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "PAUSE_S", 0.01)
    engine = open_engine(make_url(database_url).set(database="nowhere").render_as_string(hide_password=False))
    async with asyncio.timeout(60):
        with pytest.raises(DatabaseUnavailableError, match='"nowhere"'):
            await prepare(engine, migrates=True, wait_s=1000)
    await engine.dispose()


@pytest.mark.full
@pytest.mark.parametrize("comes", [True, False], ids=["comes", "does-not-come"])
def test_a_scheduler_that_waits_can_be_stopped_and_serves_once_the_database_is_there(
    late: LateDatabase, comes: bool
) -> None:
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--database-url", late.url]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "waiting for it for up to 300 s" in process.stderr.readline()
        if comes:
            late.come()
            assert process.stdout.readline().startswith("headrace scheduler: serving on ")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
