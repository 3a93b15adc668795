"""An engine on a fresh database."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.store.database import open_engine


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a fresh database with the newest schema."""
    opened = open_engine(database_url, pool_size=4)
    yield opened
    async with asyncio.timeout(60):
        while opened.pool.checkedout():  # a cancelled call returns its connection in a task of its own
            await asyncio.sleep(0.01)
    await opened.dispose()
