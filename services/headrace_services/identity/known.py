"""Tokens of a table, looked up once and cached for a few seconds, whether they exist or not.

The row is cached, by the token's id, and never the secret. So every call compares digests, and a wrong secret for
an existing id costs no query. Expiry times come from the database as remaining seconds, and this clock only counts
them: no two clocks are compared.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from headrace.errors import UnauthenticatedError
from headrace_services.identity.gate import HEADER, Identity
from headrace_services.identity.keeping import Keeper
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token, is_same

_NOBODYS: Final = bytes(32)
"""Compared if there is no row, so that both cases take the same path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A row, as of a moment."""

    id: str
    digest: bytes = field(repr=False)
    name: str
    project: str
    role: Role
    revoked: bool
    left_s: float | None
    """The time until it expires; None: it never does."""
    note_use: bool
    """Whether its last use was recorded long ago, or never."""


class TokenTable(Protocol):
    """Where tokens are stored."""

    async def find(self, token_id: str) -> StoredToken | None:
        """The row of an id."""
        ...

    async def note_use(self, token_id: str) -> None:
        """Record that a token was used now."""
        ...


class KnownTokens:
    """The tokens of a table."""

    def __init__(self, table: TokenTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._clock = clock
        self._kept: Keeper[StoredToken | None] = Keeper(lambda row: row is not None, clock)

    async def identify(self, token: Token) -> Identity:
        """The owner of a token. Raises UnauthenticatedError."""
        stored, found_at = await self._kept.get(token.id, partial(self._table.find, token.id))
        right = is_same(token.digest, stored.digest if stored else _NOBODYS)
        if stored is None or not right:
            raise UnauthenticatedError(f"{HEADER}: token {token.shown} is not known here")
        if stored.revoked:
            raise UnauthenticatedError(f"{HEADER}: token {_named(token, stored)} was revoked")
        if stored.left_s is not None and self._clock() - found_at >= stored.left_s:
            raise UnauthenticatedError(f"{HEADER}: token {_named(token, stored)} has expired")
        if stored.note_use:
            self._kept.put(token.id, (replace(stored, note_use=False), found_at))
            await self._table.note_use(token.id)
        return Identity(project=stored.project, role=stored.role, token=stored.id)


def _named(token: Token, stored: StoredToken) -> str:
    return f"{token.shown} ('{stored.name}')" if stored.name else token.shown
