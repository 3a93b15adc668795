"""Fixtures of the worker's tests."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from scripted_scheduler import ScriptedScheduler
from worker_site import Site


@pytest.fixture
async def scheduler() -> AsyncIterator[ScriptedScheduler]:
    scripted = ScriptedScheduler()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def other_scheduler() -> AsyncIterator[ScriptedScheduler]:
    scripted = ScriptedScheduler()
    await scripted.start()
    yield scripted
    await scripted.stop()


@pytest.fixture
async def site(tmp_path: Path, scheduler: ScriptedScheduler) -> AsyncIterator[Site]:
    place = Site(tmp_path, scheduler)
    yield place
    await place.leave()


@pytest.fixture
async def daemons(site: Site) -> AsyncIterator[DaemonProcess]:
    started = DaemonProcess(site)
    yield started
    await started.end()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own folders are closed."""
    folder = Path(tempfile.mkdtemp(prefix="hr-run-as-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
