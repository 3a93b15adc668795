"""Sends questions to the analysis processes, and returns their answers."""

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_services.sandbox import Limits, Pool, Run

if TYPE_CHECKING:
    from headrace.spec import StudySpec
    from headrace_services.scheduler.analysis.figures import Preview
    from headrace_services.scheduler.samplers.history import Result
    from headrace_services.scheduler.samplers.importance import Importance

PREVIEWS = Limits(memory_bytes=512 * 1024 * 1024, time_s=10.0, wait_s=30.0, waiting=32, each=4)
FRONTS = Limits(memory_bytes=512 * 1024 * 1024, time_s=10.0, wait_s=2.0, waiting=32, each=32)
"""A study is shown without its front if that takes longer."""
IMPORTANCES = Limits(memory_bytes=512 * 1024 * 1024, time_s=10.0, wait_s=10.0, waiting=32, each=8)
SMALL_FRONT = 500
"""A front of this many vectors takes a few milliseconds: less than sending it to a process."""


class AnalysisPools:
    """Uses three processes for one replica, for previews, fronts and importances, so that previews do not delay
    fronts.

    Each process starts with the first question that needs it.
    """

    def __init__(
        self, previews: Limits = PREVIEWS, fronts: Limits = FRONTS, importances: Limits = IMPORTANCES
    ) -> None:
        self._previews = Pool(_load, 1, previews)
        self._fronts = Pool(_load, 1, fronts)
        self._importances = Pool(_load_importances, 1, importances)

    async def preview(
        self,
        spec: "StudySpec",
        slots: int,
        seconds_per_step: float | None,
        target_seconds_per_step: float | None = None,
        *,
        caller: str = "",
    ) -> "Preview":
        """The preview of a spec. Raises TooLargeError."""
        asked = pickle.dumps((spec, slots, seconds_per_step, target_seconds_per_step))
        answer = await self._previews.result("preview", asked, caller=caller)
        found: Preview = pickle.loads(answer)  # noqa: S301  (our own process wrote it)
        return found

    async def front(self, vectors: Sequence[Sequence[float]], signs: Sequence[float]) -> list[int]:
        """The indices of the vectors on the front. Raises TooLargeError."""
        if len(vectors) <= SMALL_FRONT:
            from headrace_services.scheduler.samplers.front import front  # numpy, only for such studies

            return front(vectors, signs)
        answer = await self._fronts.result("front", pickle.dumps((vectors, signs)))
        places: list[int] = pickle.loads(answer)  # noqa: S301  (our own process wrote it)
        return places

    async def importances(
        self, spec: "StudySpec", level: int, results: "Sequence[Result]", *, caller: str = ""
    ) -> "tuple[Importance, ...]":
        """How much each parameter matters, by objective, from results at one level. Raises TooLargeError."""
        asked = pickle.dumps((spec, level, results))
        answer = await self._importances.result("importances", asked, caller=caller)
        found: tuple[Importance, ...] = pickle.loads(answer)  # noqa: S301  (our own process wrote it)
        return found

    async def close(self) -> None:
        """End the processes."""
        await self._previews.close()
        await self._fronts.close()
        await self._importances.close()


def _load() -> Run:
    from headrace_services.scheduler.analysis.work import run

    return run


def _load_importances() -> Run:
    from headrace_services.scheduler.analysis.importances import run

    return run
