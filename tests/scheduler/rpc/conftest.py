"""A replica on loopback over a fresh database."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio
from rpc_site import RpcSite
from sqlalchemy.ext.asyncio import AsyncEngine


@pytest_asyncio.fixture
async def site(engine: AsyncEngine) -> AsyncIterator[RpcSite]:
    """A site with one replica."""
    async with AsyncExitStack() as stack:
        opened = RpcSite(engine=engine, stack=stack)
        await opened.add_replica()
        yield opened
