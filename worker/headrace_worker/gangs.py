"""The reports of a gang of one process a slot: rank 0 speaks, the others are answered what it is answered.

Every rank calls `report` at the same steps, so a sequence names the same moment on all of them. Rank 0's report
with a checkpoint waits until the others have come to that moment too and handed in their part (their random
generators), which goes into the same checkpoint. Ranks that never report (a script that reports on rank 0 alone)
are waited for once, and then no more.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from headrace.v1 import event_pb2, runtime_pb2

log = logging.getLogger(__name__)
PATIENCE_S = 60.0
Answers = Mapping[int, "asyncio.Task[event_pb2.Decision]"]


class Gang:
    """The other ranks of one lease."""

    def __init__(self, trial: str, world: int, patience_s: float = PATIENCE_S) -> None:
        self._trial = trial
        self.world = world
        self._patience_s = patience_s
        self._parts: dict[int, dict[int, Path | None]] = {}
        self._changed = asyncio.Condition()

    async def report(
        self,
        request: runtime_pb2.ReportRequest,
        answers: Answers,
        folder: Path | None,
        over: Callable[[], bool],
    ) -> "asyncio.Task[event_pb2.Decision] | None":
        """Takes another rank's part; returns rank 0's report of the same sequence, or None when the lease is over."""
        async with self._changed:
            self._parts.setdefault(request.sequence, {})[request.rank] = folder
            self._changed.notify_all()
            await self._changed.wait_for(lambda: request.sequence in answers or over())
            return answers.get(request.sequence)

    async def arrived(self) -> None:
        """Rank 0 has reported, or the lease is over: those who wait for it look again."""
        async with self._changed:
            self._changed.notify_all()

    async def gather(self, sequence: int, folder: Path) -> None:
        """Puts the other ranks' parts of a checkpoint beside rank 0's."""
        if self.world < 2:
            return
        try:
            async with asyncio.timeout(self._patience_s), self._changed:
                await self._changed.wait_for(lambda: len(self._parts.get(sequence, {})) >= self.world - 1)
        except TimeoutError:
            log.warning(
                "%s: only rank 0 reports; call t.report on every rank, so that all of them are saved and told",
                self._trial,
            )
            self._patience_s = 0.0
        for rank, part in sorted(self._parts.pop(sequence, {}).items()):
            if part is not None:
                await asyncio.to_thread(_move_in, part, folder, rank)
        for old in [known for known in self._parts if known < sequence]:
            del self._parts[old]


def _move_in(part: Path, folder: Path, rank: int) -> None:
    for file in part.iterdir():
        file.rename(folder / f"rank-{rank}{file.suffix}")
    shutil.rmtree(part, ignore_errors=True)
