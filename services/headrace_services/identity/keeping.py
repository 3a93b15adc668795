"""Answers about tokens, cached for a few seconds, so that a call rarely waits for the database or for a scheduler.

Somebody who guesses tokens asks about tokens that do not exist. These questions wait for each other, only a few
run at once, and they evict each other's answers. None of that affects existing tokens: they are looked up again
separately.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

KEPT_S: Final = 5.0
"""How long a revoked token may still work."""
MOST: Final = 4096
"""How many answers of each kind are cached: about existing tokens, and about others."""
AT_ONCE: Final = 2
"""How many questions of each kind run at once. Somebody who guesses tokens takes no more connections from others."""

Answer = TypeVar("Answer")


class Keeper(Generic[Answer]):
    """Caches answers by the token's key."""

    def __init__(self, is_there: Callable[[Answer], bool], clock: Callable[[], float]) -> None:
        """`is_there`: whether an answer is about an existing token."""
        self._is_there = is_there
        self._clock = clock
        self._there: dict[str, tuple[Answer, float]] = {}
        self._others: dict[str, tuple[Answer, float]] = {}
        self._again = asyncio.Semaphore(AT_ONCE)
        self._first = asyncio.Semaphore(AT_ONCE)

    async def get(self, key: str, ask: Callable[[], Awaitable[Answer]]) -> tuple[Answer, float]:
        """The answer about a token, and when it was asked for."""
        if (kept := self._fresh(key)) is not None:
            return kept
        async with self._again if key in self._there else self._first:
            if (kept := self._fresh(key)) is not None:  # asked for by another call meanwhile
                return kept
            now = self._clock()
            found = await ask(), now
        self._there.pop(key, None)
        self._others.pop(key, None)
        self.put(key, found)
        return found

    def put(self, key: str, found: tuple[Answer, float]) -> None:
        """Replace a cached answer."""
        kept = self._there if self._is_there(found[0]) else self._others
        if key not in kept and len(kept) >= MOST:
            del kept[next(iter(kept))]
        kept[key] = found

    def __len__(self) -> int:
        return len(self._there) + len(self._others)

    def _fresh(self, key: str) -> tuple[Answer, float] | None:
        kept = self._there.get(key) or self._others.get(key)
        return kept if kept is not None and self._clock() - kept[1] < KEPT_S else None
