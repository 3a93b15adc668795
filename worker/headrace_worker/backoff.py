"""Waits that grow with every failure, with full jitter so that many workers do not return at the same time."""

import asyncio
import random
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Backoff:
    """Draws each wait uniformly between 0 and a bound that doubles up to `cap_s`."""

    base_s: float = 0.2
    cap_s: float = 15.0
    rng: random.Random = field(default_factory=random.SystemRandom)
    failures: int = 0

    def next_s(self) -> float:
        """Counts one more failure and draws the wait that follows, in seconds."""
        bound = min(self.cap_s, self.base_s * 2 ** min(self.failures, 30))
        self.failures += 1
        return self.rng.uniform(0.0, bound)

    async def wait(self) -> None:
        """Counts a failure and waits."""
        await asyncio.sleep(self.next_s())

    def succeeded(self) -> None:
        """Starts over."""
        self.failures = 0
