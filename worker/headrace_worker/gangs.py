"""The reports of a gang with one process per slot: rank 0 speaks, and the others get the same answer.

Every rank calls `report` at the same steps, so a sequence number names the same moment on all of them. The ranks
fill one folder with their parts of a checkpoint. Rank 0's report of that checkpoint waits until the others have
reached the same moment and the parts of all of them are there; otherwise there is no checkpoint.

A rank that does not arrive ends the gang, once the others have waited for it `patience_s` longer than for any
report before. Between ranks that write their parts of one checkpoint the limit is `WRITES_S`, since the disk may
be full. A rank that never reports is not waited for: for example, the script reports on rank 0 alone and saves
nothing. A rank that is far behind is answered at once.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.grants import DEFAULT_RANK_PATIENCE_S
from headrace.v1 import event_pb2, runtime_pb2

WRITES_S = 600.0
"""How long the ranks' parts of one checkpoint may be apart: ranks that write it have reached it together."""
Answers = Mapping[int, "asyncio.Task[event_pb2.Decision]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMissing:
    """A rank that the others wait for and that does not arrive."""

    text: str
    # Whether it was to write its part of a checkpoint; the cause may then be the disk.
    writes: bool


class PartMissingError(ValueError):
    """A rank arrived without its part of a checkpoint; the text is for the user."""


class Gang:
    """The other ranks of one lease."""

    def __init__(
        self,
        world: int,
        missing: Callable[[RankMissing], None],
        *,
        patience_s: float = DEFAULT_RANK_PATIENCE_S,
        writes_s: float = WRITES_S,
    ) -> None:
        self.world = world
        self._missing = missing
        self._patience_s = patience_s
        self._writes_s = writes_s
        self._longest_s = 0.0
        self._last_at = time.monotonic()
        # The last sequence that each of the other ranks reached. A rank reaches the next one when that is
        # answered.
        self._came: dict[int, int] = {}
        self._gone = False
        self._changed = asyncio.Condition()

    async def report(
        self,
        request: runtime_pb2.ReportRequest,
        answers: Answers,
        folder: Path | None,
        over: Callable[[], bool],
    ) -> "asyncio.Task[event_pb2.Decision] | None":
        """Receives another rank's report, with the folder that has its part of a checkpoint; returns rank 0's
        report of the same sequence.

        Returns None if the lease is over, or if rank 0's report was answered so long ago that it has been dropped.
        """
        since_s = time.monotonic() - self._last_at
        patience_s = self._patience_s + max(self._longest_s, since_s)
        if folder is not None:
            patience_s = max(patience_s, self._writes_s)
        async with self._changed:
            self._came[request.rank] = max(request.sequence, self._came.get(request.rank, 0))
            self._changed.notify_all()
            try:
                async with asyncio.timeout(patience_s):
                    await self._changed.wait_for(
                        lambda: request.sequence <= max(answers, default=0) or over()
                    )
            except TimeoutError:
                self._missing(_rank_0_missing(request, folder, patience_s))
                await self._changed.wait_for(over)
            return answers.get(request.sequence)

    async def arrived(self) -> None:
        """Rank 0 has reported, or the lease is over: those who wait for that check again."""
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._last_at)
        self._last_at = now
        async with self._changed:
            self._changed.notify_all()

    async def gone(self) -> None:
        """The processes have ended: parts that they have not handed in are not waited for."""
        self._gone = True
        await self.arrived()

    def answered(self) -> None:
        """Rank 0 has its answer: the time that a decision took does not count as the gang's."""
        self._last_at = time.monotonic()

    async def gather(self, sequence: int, folder: Path) -> None:
        """Waits until each of the other ranks has written its part; raises `PartMissingError` if one has not."""
        if self.world < 2:
            return
        others = range(1, self.world)
        async with self._changed:
            try:
                async with asyncio.timeout(self._writes_s):
                    await self._changed.wait_for(lambda: not self._late(others, sequence) or self._gone)
            except TimeoutError:
                late = self._late(others, sequence)
                text = f"rank {_listed(late)} has not written its part of {folder.name} within {self._writes_s:.0f} s"
                self._missing(RankMissing(text=text, writes=True))
                await self._changed.wait_for(lambda: False)  # until the attempt is over
        if absent := await asyncio.to_thread(_absent, folder, self.world):
            raise PartMissingError(
                f"checkpoint {folder.name} is incomplete: the part of rank {_listed(absent)} is missing; "
                "every rank writes its own into the folder of rank 0"
            )

    def _late(self, others: Iterable[int], sequence: int) -> list[int]:
        return [rank for rank in others if self._came.get(rank, 0) < sequence]


def _rank_0_missing(
    request: runtime_pb2.ReportRequest, folder: Path | None, patience_s: float
) -> RankMissing:
    if folder is not None:
        text = f"rank 0 has not written its part of {folder.name} within {patience_s:.0f} s of rank {request.rank}"
        return RankMissing(text=text, writes=True)
    text = (
        f"rank 0 has not reached the report of step {request.step} within {patience_s:.0f} s of rank {request.rank}: "
        "it hangs, or the ranks report at different steps: "
        "every rank calls t.report(...) at the same steps. If it only takes longer, raise "
        "trial.report_timeout_s in the study file"
    )
    return RankMissing(text=text, writes=False)


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _absent(folder: Path, world: int) -> list[int]:
    return [rank for rank in range(world) if not any(folder.glob(f"rank-{rank}.*"))]
