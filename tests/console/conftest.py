"""Schedulers on a fresh database, and consoles for them."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

sys.path.insert(0, str(Path(__file__).parent.parent / "scheduler" / "rpc"))

from console_site import Console, Scheduler, serving

from headrace_services.identity.roles import Auth
from headrace_services.scheduler.store.database import open_engine


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a fresh database with the newest schema."""
    opened = open_engine(database_url, pool_size=6)
    yield opened
    async with asyncio.timeout(60):
        while opened.pool.checkedout():  # a cancelled call returns its connection in a task of its own
            await asyncio.sleep(0.01)
    await opened.dispose()


@pytest_asyncio.fixture
async def open_scheduler(engine: AsyncEngine) -> AsyncIterator[Scheduler]:
    """A scheduler that asks for no token."""
    scheduler = Scheduler(engine=engine, auth=Auth.NONE)
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


@pytest_asyncio.fixture
async def closed_scheduler(engine: AsyncEngine) -> AsyncIterator[Scheduler]:
    """A scheduler that requires tokens."""
    scheduler = Scheduler(engine=engine, auth=Auth.TOKENS)
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


@pytest_asyncio.fixture
async def console(open_scheduler: Scheduler) -> AsyncIterator[Console]:
    """A console without a login."""
    async with serving(open_scheduler) as served:
        yield served


@pytest_asyncio.fixture
async def closed(closed_scheduler: Scheduler) -> AsyncIterator[Console]:
    """A console with a login, which other machines could reach: it listens here, but thinks that it does not."""
    async with serving(closed_scheduler, host="0.0.0.0", hosts=("127.0.0.1",)) as served:
        yield served
