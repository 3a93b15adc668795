"""Who is logged in: a random cookie for each browser, and one connection for each token.

A session holds its user's token in memory only; a console that restarts asks for it again. Connections are shared
by the sessions of a token, and closed when it has had no request for ten minutes or is refused.

Anybody can send a token that nobody checked. Connections of tokens without a session are therefore few: a further
one replaces the one that was idle for longest, and waits for none.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.client import AsyncClient
from headrace.client.aio import connected_to
from headrace.errors import UnauthenticatedError
from headrace.target import Target

MOST_SESSIONS: Final = 256
MOST_STRANGERS: Final = 32
"""How many connections there are for tokens without a session."""
ANSWER_S: Final = 12.0
"""For how long a page waits for the scheduler. The SDK's half a minute is for programs: people reload sooner."""
IDLE_S: Final = 600.0
"""After this time without a request, a connection is closed."""
LONGEST_S: Final = 12 * 3600.0
"""After this time a session ends, whatever happened in it."""


class FullError(Exception):
    """There are as many sessions or connections as the console allows."""


@dataclass(slots=True)
class Session:
    """A logged-in browser."""

    token: str
    name: str
    """The user's name for the token, to be shown."""
    ends_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))


@dataclass(slots=True)
class Connection:
    """A connection to the scheduler, with a token."""

    client: AsyncClient
    used_at: float
    users: int = 0
    """How many requests use it now."""
    checked: bool = False
    """Whether the scheduler was seen to check its token."""


class Sessions:
    """All sessions and connections. `clock` returns seconds."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._connections: dict[str, Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def open(self, token: str, name: str) -> tuple[str, Session]:
        """A new session and its cookie. Raises FullError."""
        now = self._clock()
        self._sessions = {cookie: one for cookie, one in self._sessions.items() if one.ends_at > now}
        if len(self._sessions) >= MOST_SESSIONS:
            # Who logs in again and again ends their own sessions, not those of others.
            own = [cookie for cookie, one in self._sessions.items() if one.token == token]
            if not own:
                raise FullError
            del self._sessions[own[0]]
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

    @contextmanager
    def using(self, token: str) -> Iterator[Connection]:
        """The connection of a token, kept open meanwhile; an empty token is that of everybody, for schedulers that
        ask for none. Raises FullError, and UnauthenticatedError for what cannot be a token.
        """
        if not token.isascii() or not token.isprintable():  # gRPC fails on it without a status
            raise UnauthenticatedError("this is not a token")
        connection = self._connections.get(token)
        if connection is None:
            if token and not self._has_session(token):
                self._make_room()
            target = replace(self._target, token=token or None)
            connection = self._connections[token] = Connection(connected_to(target, timeout_s=ANSWER_S), 0.0)
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            connection.used_at = self._clock()

    def _has_session(self, token: str) -> bool:
        return any(one.token == token for one in self._sessions.values())

    def _make_room(self) -> None:
        """Before a connection for a token without a session. Raises FullError."""
        known = {one.token for one in self._sessions.values()} | {""}
        strangers = [token for token in self._connections if token not in known]
        if len(strangers) < MOST_STRANGERS:
            return
        idle = [token for token in strangers if not self._connections[token].users]
        if not idle:
            raise FullError
        oldest = min(idle, key=lambda token: self._connections[token].used_at)
        closing = asyncio.create_task(self._connections.pop(oldest).client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close_idle(self, in_use: Callable[[str], bool]) -> None:
        """Close the connections without a request for a while, unless a page is being followed with their token."""
        now = self._clock()
        for token, connection in [*self._connections.items()]:
            if in_use(token) or connection.users:
                connection.used_at = now
            elif now - connection.used_at > IDLE_S and self._connections.get(token) is connection:
                del self._connections[
                    token
                ]  # before the wait below, in which another request may make a new one
                await connection.client.close()

    async def close(self) -> None:
        """Close everything."""
        connections, self._connections = self._connections, {}
        await asyncio.gather(*self._closing, *(one.client.close() for one in connections.values()))
