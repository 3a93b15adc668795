"""Whose token a call carries, asked of a scheduler: the planner has no database, so the scheduler says who it is.

An answer is kept for as long as the scheduler keeps its own. So a token that is revoked works for twice that at most.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from headrace import AsyncClient
from headrace.errors import DatabaseUnavailableError, DeadlineError, UnauthenticatedError, UnreachableError
from headrace_services.identity.gate import HEADER, Identity
from headrace_services.identity.known import KEPT_S, MOST
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token

TIMEOUT_S: Final = 5.0
AT_ONCE: Final = 8
"""Questions at once, each a connection of its own. Whoever tries tokens has no more of the scheduler."""
Kept = tuple[Identity | UnauthenticatedError, float]


class SchedulersTokens:
    """The tokens that the scheduler at an address knows."""

    def __init__(self, address: str, clock: Callable[[], float] | None = None) -> None:
        self._address = address
        self._clock = clock
        self._kept: dict[bytes, Kept] = {}
        self._asking = asyncio.Semaphore(AT_ONCE)

    async def identify(self, token: Token) -> Identity:
        """Whose token it is. Raises UnauthenticatedError, and DatabaseUnavailableError where no scheduler answers."""
        kept = self._fresh(token)
        if kept is None:
            async with self._asking:
                kept = self._fresh(token) or await self._asked_now(
                    token
                )  # it may have been asked for meanwhile
        found = kept[0]
        if isinstance(found, UnauthenticatedError):
            raise UnauthenticatedError(found.message, remedy=found.remedy)
        return found

    def _now(self) -> float:
        return (self._clock or asyncio.get_running_loop().time)()

    def _fresh(self, token: Token) -> Kept | None:
        kept = self._kept.get(token.digest)
        return kept if kept is not None and self._now() - kept[1] < KEPT_S else None

    async def _asked_now(self, token: Token) -> Kept:
        now = self._now()
        found = await self._asked(token), now
        self._kept.pop(token.digest, None)
        if len(self._kept) >= MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[token.digest] = found
        return found

    async def _asked(self, token: Token) -> Identity | UnauthenticatedError:
        try:
            async with AsyncClient(
                self._address, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S, token=token.text
            ) as client:
                who = await client.who_am_i()
        except UnauthenticatedError as error:
            return error
        except (UnreachableError, DeadlineError) as error:
            raise DatabaseUnavailableError(
                f"the scheduler that knows the tokens does not answer: {error.message}",
                remedy="Try again when it does. The planner was told of it with --scheduler.",
            ) from error
        if who.token is None:
            return UnauthenticatedError(
                f"{HEADER}: the planner's scheduler asks for no tokens, so it cannot say whose this one is",
                remedy="Start the planner with --auth none, or its scheduler with --auth tokens.",
            )
        return Identity(project=who.project, role=Role(who.role.value), token=who.token.id)
