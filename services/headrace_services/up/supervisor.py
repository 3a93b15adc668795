"""Starts children in order, restarts any that dies, and stops them in reverse order.

The states of a child are in the package's docstring. All decisions are made on one event loop by one task per
child; the only local time that counts is how long a child lived, which sets the pause before its next start.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from headrace_services.up.child import Child, ChildFailedError, ChildSpec

BACKOFF_FIRST_S = 0.25
BACKOFF_LONGEST_S = 15.0
FIRST_STARTS = 4
"""How often a child is started that is killed each time before everything is ready. One that fails by itself would fail
again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something about a child that people want to know."""

    child: str
    text: str
    kind: Literal["progress", "good", "trouble"] = "progress"


class Supervisor:
    """Keeps a list of children alive. One object per run."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        announce: Callable[[Notice], None],
        rng: random.Random | None = None,
    ) -> None:
        self._children = [Child(spec) for spec in specs]
        self._announce = announce
        self._rng = rng or random.Random()  # noqa: S311 - spreads restarts, guards no secret

    async def run(self, stopping: asyncio.Event, on_ready: Callable[[], None]) -> None:
        """Runs the children until `stopping` is set; calls `on_ready` once, when all are ready.

        Raises ChildFailedError when a child fails by itself before `on_ready`, or is killed again and again. No child
        is left when it returns or raises.
        """
        failure: ChildFailedError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                serving = [tasks.create_task(self._serve(on_ready))]
                serving += [
                    tasks.create_task(self._keep_extra(child))
                    for child in self._children
                    if not child.spec.needed
                ]
                await stopping.wait()
                for task in serving:
                    task.cancel()
        except* ChildFailedError as failures:
            failure = next(error for error in failures.exceptions if isinstance(error, ChildFailedError))
        finally:
            await self._stop()
        if failure is not None:
            raise failure

    def kill(self) -> None:
        """Ends every child now. A `run` in progress sees them end and returns."""
        for child in self._children:
            child.kill()

    def pid(self, name: str) -> int | None:
        """The process of a child, if it is running."""
        return next(child.pid for child in self._children if child.spec.name == name)

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        needed = [child for child in self._children if child.spec.needed]
        for child in needed:
            self._say(child, "starting")
            await self._start(child)
        on_ready()
        async with asyncio.TaskGroup() as keepers:
            for child in needed:
                keepers.create_task(self._keep(child))

    async def _start(self, child: Child) -> None:
        """Starts a child for the first time, and again if it is killed before it is ready."""
        for attempt in range(1, FIRST_STARTS + 1):
            try:
                self._say(child, await child.start() or "started", "good")
            except ChildFailedError as failure:
                if not failure.killed or attempt == FIRST_STARTS:
                    raise
                pause_s = backoff_s(attempt, self._rng)
                self._say(child, f"{failure.brief}; restarting it in {pause_s:.1f} s", "trouble")
                await asyncio.sleep(pause_s)
            else:
                return

    async def _keep_extra(self, child: Child) -> None:
        """Starts and keeps a child that nothing else waits for. If it cannot be started, it is tried again."""
        self._say(child, "starting")
        failure = ""
        try:
            self._say(child, await child.start() or "started", "good")
        except ChildFailedError as error:
            failure = error.brief
        await self._keep(child, failure)

    async def _keep(self, child: Child, failure: str = "") -> None:
        """Restarts a child whenever it ends. `failure` says why its start failed, if it did."""
        attempt = 0
        spec = child.spec
        longest_s = BACKOFF_LONGEST_S if failure else spec.longest_pause_s
        ending = failure or await child.wait()
        while True:
            lived_s = asyncio.get_running_loop().time() - child.started_at
            attempt = 1 if lived_s >= spec.steady_after_s else attempt + 1
            pause_s = min(longest_s, backoff_s(attempt, self._rng))
            self._say(child, f"{ending}; restarting it in {pause_s:.1f} s", "trouble")
            await asyncio.sleep(pause_s)
            try:
                self._say(child, f"{await child.start() or 'started'} again", "good")
                ending, longest_s = await child.wait(), spec.longest_pause_s
            except ChildFailedError as failure:
                ending, longest_s = failure.brief, BACKOFF_LONGEST_S

    async def _stop(self) -> None:
        for child in reversed(self._children):
            if child.pid is not None:
                self._say(child, "stopping")
                self._say(child, await child.stop())

    def _say(
        self, child: Child, text: str, kind: Literal["progress", "good", "trouble"] = "progress"
    ) -> None:
        self._announce(Notice(child=child.spec.name, text=text, kind=kind))


def backoff_s(attempt: int, rng: random.Random) -> float:
    """The pause before start number `attempt` (from 1) after a death: doubles, with the upper half at random."""
    longest = min(BACKOFF_LONGEST_S, BACKOFF_FIRST_S * 2.0 ** min(attempt - 1, 30))
    return longest * rng.uniform(0.5, 1.0)
