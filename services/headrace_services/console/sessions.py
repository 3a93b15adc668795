"""Who is logged in: a random cookie for each browser, and one connection for each token.

A session holds its user's token in memory only; a console that restarts asks for it again. Connections are shared
by the sessions of a token, and closed when it has had no request for ten minutes or is refused.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.client import AsyncClient
from headrace.client.aio import connected_to
from headrace.target import Target

MOST_SESSIONS: Final = 256
IDLE_S: Final = 600.0
"""After this time without a request, a connection is closed."""
LONGEST_S: Final = 12 * 3600.0
"""After this time a session ends, whatever happened in it."""


class FullError(Exception):
    """There are as many sessions as the console allows."""


@dataclass(slots=True)
class Session:
    """A logged-in browser."""

    token: str
    name: str
    """The user's name for the token, to be shown."""
    ends_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))


@dataclass(slots=True)
class _Connection:
    client: AsyncClient
    used_at: float


class Sessions:
    """All sessions and connections. `clock` returns seconds."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._connections: dict[str, _Connection] = {}

    def open(self, token: str, name: str) -> tuple[str, Session]:
        """A new session and its cookie. Raises FullError."""
        now = self._clock()
        self._sessions = {cookie: one for cookie, one in self._sessions.items() if one.ends_at > now}
        if len(self._sessions) >= MOST_SESSIONS:
            raise FullError
        cookie, session = secrets.token_urlsafe(32), Session(token=token, name=name, ends_at=now + LONGEST_S)
        self._sessions[cookie] = session
        return cookie, session

    def find(self, cookie: str) -> Session | None:
        """The session with a cookie, if it has not ended."""
        session = self._sessions.get(cookie)
        return session if session and session.ends_at > self._clock() else None

    def end(self, cookie: str) -> None:
        """Log out."""
        self._sessions.pop(cookie, None)

    async def forget_token(self, token: str) -> None:
        """End the sessions of a token that the scheduler refuses, and their connection."""
        self._sessions = {cookie: one for cookie, one in self._sessions.items() if one.token != token}
        connection = self._connections.pop(token, None)
        if connection is not None:
            await connection.client.close()

    def client(self, token: str) -> AsyncClient:
        """The connection of a token; an empty one is that of everybody, for schedulers that ask for none."""
        connection = self._connections.get(token)
        if connection is None:
            target = replace(self._target, token=token or None)
            connection = self._connections[token] = _Connection(connected_to(target), 0.0)
        connection.used_at = self._clock()
        return connection.client

    async def close_idle(self, in_use: Callable[[str], bool]) -> None:
        """Close the connections without a request for a while, unless a page is being followed with their token."""
        now = self._clock()
        for token, connection in [*self._connections.items()]:
            if in_use(token):
                connection.used_at = now
            elif now - connection.used_at > IDLE_S:
                del self._connections[token]
                await connection.client.close()

    async def close(self) -> None:
        """Close everything."""
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(one.client.close() for one in connections.values()))
