"""A replica with the workers' service."""

from collections.abc import AsyncIterator

import pytest_asyncio
from session_site import TIMING, Replica, serving
from sqlalchemy.ext.asyncio import AsyncEngine


@pytest_asyncio.fixture
async def replica(engine: AsyncEngine) -> AsyncIterator[Replica]:
    """One replica."""
    async with serving(engine, TIMING) as running:
        yield running
