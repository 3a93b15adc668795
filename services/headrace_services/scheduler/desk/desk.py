"""Takes questions to the processes, and their answers back."""

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_services.apart import Limits, Pool, Run
from headrace_services.scheduler.samplers.front import front

if TYPE_CHECKING:
    from headrace.spec import StudySpec
    from headrace_services.scheduler.preview import Preview

PROCESSES = 1
LIMITS = Limits(memory_bytes=512 * 1024 * 1024, time_s=10.0, waiting=32)
SMALL_FRONT = 500
"""Vectors whose front takes a few milliseconds: less than the way to a process."""


class Desk:
    """Asks the processes of one replica. They start with the first question that needs one."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._pool = Pool(_load, PROCESSES, limits)

    async def preview(self, spec: "StudySpec", slots: int, seconds_per_step: float | None) -> "Preview":
        """What a spec would do. Raises TooLargeError."""
        answer = await self._pool.result("preview", pickle.dumps((spec, slots, seconds_per_step)))
        found: Preview = pickle.loads(answer)  # noqa: S301  (our own process wrote it)
        return found

    async def front(self, vectors: Sequence[Sequence[float]], signs: Sequence[float]) -> list[int]:
        """The places of the vectors on the front. Raises TooLargeError."""
        if len(vectors) <= SMALL_FRONT:
            return front(vectors, signs)
        answer = await self._pool.result("front", pickle.dumps((vectors, signs)))
        places: list[int] = pickle.loads(answer)  # noqa: S301  (our own process wrote it)
        return places

    async def close(self) -> None:
        """End the processes."""
        await self._pool.close()


def _load() -> Run:
    from headrace_services.scheduler.desk.work import run

    return run
