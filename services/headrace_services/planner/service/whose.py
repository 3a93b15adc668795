"""Whose token a call carries, asked of a scheduler: the planner has no database, so the scheduler identifies the
caller.

An answer is kept for as long as the scheduler keeps its own. So a revoked token works for at most twice that time.
Each question uses a separate connection, and few are asked at once.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from headrace import AsyncClient
from headrace.errors import DatabaseUnavailableError, DeadlineError, UnauthenticatedError, UnreachableError
from headrace_services.identity.gate import HEADER, Identity
from headrace_services.identity.keeping import Keeper
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token

TIMEOUT_S: Final = 5.0
Answer = Identity | UnauthenticatedError


class SchedulersTokens:
    """The tokens that the scheduler at an address knows."""

    def __init__(self, address: str, clock: Callable[[], float] | None = None) -> None:
        self._address = address
        self._kept: Keeper[Answer] = Keeper(
            lambda answer: isinstance(answer, Identity), clock or time.monotonic
        )

    async def identify(self, token: Token) -> Identity:
        """The owner of a token. Raises UnauthenticatedError, and DatabaseUnavailableError if no scheduler answers."""
        found, _ = await self._kept.get(token.digest.hex(), partial(self._asked, token))
        if isinstance(found, UnauthenticatedError):
            raise UnauthenticatedError(found.message, remedy=found.remedy)
        return found

    async def _asked(self, token: Token) -> Answer:
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
                remedy="Try again when it does. It was given to the planner with --scheduler.",
            ) from error
        if who.token is None:
            return UnauthenticatedError(
                f"{HEADER}: the planner's scheduler asks for no tokens, so it cannot say whose this one is",
                remedy="Start the planner with --auth none, or its scheduler with --auth tokens.",
            )
        return Identity(project=who.project, role=Role(who.role.value), token=who.token.id)
