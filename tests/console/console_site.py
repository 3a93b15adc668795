"""A console on loopback, with a real scheduler over a real database: with tokens, or without."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx2
import uvicorn
from rpc_site import make_spec
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.client import AsyncClient
from headrace.client.aio import connected_to
from headrace.target import Target
from headrace_services.console.app import build
from headrace_services.console.guard import Guard
from headrace_services.console.server import config
from headrace_services.console.settings import Settings
from headrace_services.identity.roles import Auth, Role
from headrace_services.identity.tokens import new_token
from headrace_services.scheduler import process
from headrace_services.scheduler.rpc.identity_service import make
from headrace_services.scheduler.store import tables, tokens
from headrace_services.scheduler.store.database import transaction


@dataclass(kw_only=True)
class Scheduler:
    """A scheduler that can be stopped and started again at its address."""

    engine: AsyncEngine
    auth: Auth
    port: int = 0
    _stop: process.Stop | None = None
    _running: "asyncio.Task[None] | None" = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        settings = process.Settings(
            database_url="", listen=self.address, auth=self.auth, sampler_processes=1, drain_grace_s=0.2
        )
        bound = process._listeners(settings, process._gate(self.engine, settings))
        self.port = bound.users.port
        self._stop = process.Stop()
        self._running = asyncio.create_task(
            process._serve_bound(self.engine, settings, self._stop, bound, "")
        )

    async def stop(self) -> None:
        stop, running, self._stop, self._running = self._stop, self._running, None, None
        if stop is not None and running is not None:
            stop.call()
            await running

    async def token(self, role: Role = Role.EDITOR, project: str = "default") -> str:
        made, _ = await make(
            self.engine, name=f"{role.value}-{project}", project=project, role=role, lifetime_s=None
        )
        return made.text

    async def ended_token(self, how: str) -> str:
        """A token that the scheduler refuses: wrong, expired or revoked."""
        if how == "wrong":
            return new_token().text
        text = await self.token()
        token_id = text.split("_")[1]
        async with transaction(self.engine) as conn:
            if how == "revoked":
                await tokens.revoke(conn, token_id)
            else:
                past = func.now() - timedelta(hours=1)
                await conn.execute(
                    update(tables.token).where(tables.token.c.id == token_id).values(expire_time=past)
                )
        return text

    @asynccontextmanager
    async def sdk(self, token: str | None = None) -> AsyncIterator[AsyncClient]:
        async with connected_to(Target(replicas=(self.address,), token=token)) as client:
            yield client


@dataclass(kw_only=True)
class Console:
    """The pages, over real HTTP."""

    guard: Guard
    url: str
    scheduler: Scheduler
    http: httpx2.AsyncClient
    server: uvicorn.Server = field(repr=False)
    stack: AsyncExitStack = field(repr=False)

    @property
    def state(self) -> Any:
        """What the application holds: its sessions and watches."""
        return self.guard.app.state

    def cut(self) -> None:
        """Break every connection, as a network does that is gone."""
        for connection in [*self.server.server_state.connections]:
            connection.transport.abort()  # type: ignore[union-attr]  # HTTP connections have one

    async def browser(self, **options: Any) -> httpx2.AsyncClient:
        """A browser with cookies of its own."""
        client = httpx2.AsyncClient(base_url=self.url, timeout=60, **options)
        return await self.stack.enter_async_context(client)

    async def login(self, browser: httpx2.AsyncClient, token: str, then: str = "/") -> httpx2.Response:
        """Fill in the form."""
        page = await browser.get("/login", params={"next": then})
        return await browser.post(
            "/login", data={"csrf": hidden(page.text, "csrf"), "next": then, "token": token}
        )


def hidden(page: str, name: str) -> str:
    """The value of a hidden field."""
    return page.split(f'name="{name}" value="')[1].split('"')[0]


@asynccontextmanager
async def serving(scheduler: Scheduler, **changes: Any) -> AsyncIterator[Console]:
    """A console for a scheduler, as `headrace console` serves it."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    fields = {"target": Target(replicas=(scheduler.address,)), "port": port, **changes}
    guard = build(Settings(**fields))
    server = uvicorn.Server(config(guard, fields.get("root_path", "")))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    url = f"http://127.0.0.1:{port}"
    try:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=60))
            yield Console(guard=guard, url=url, scheduler=scheduler, http=http, server=server, stack=stack)
    finally:
        server.should_exit = True
        with suppress(asyncio.CancelledError):
            await running
        listening.close()


async def make_study(scheduler: Scheduler, name: str = "s", token: str | None = None, **changes: Any) -> None:
    """Create an ask/tell study, and wait for its first trials."""
    async with scheduler.sdk(token) as client:
        study = await client.create_study(name, make_spec(**changes))
        async with asyncio.timeout(60):
            while not (await study.status()).counts.total:
                await asyncio.sleep(0.02)


async def until(holds: Any, what: str, within_s: float = 60) -> None:
    """Polls until a condition holds."""
    try:
        async with asyncio.timeout(within_s):
            while not holds():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"within {within_s} s: {what}") from None
