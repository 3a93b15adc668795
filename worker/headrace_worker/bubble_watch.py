"""Asks the bubble agent of this machine, at intervals, which stages trials may use, and informs the scheduler.

A slot that was taken back is reported in the next heartbeat, as a device that failed. Its trials are asked to save
and exit at their next report; those that are still there after a while are ended. A new slot needs a new session,
whose Hello names all devices.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc

from headrace.target import proxy_options
from headrace.v1 import bubble_pb2, bubble_pb2_grpc
from headrace_torch.bubble_shm import AT, StageFile, StageFileError, folder
from headrace_worker.bubble_slots import BubbleSlots
from headrace_worker.session_core import SessionCore
from headrace_worker.slots import Slots

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
PATIENCE_S: Final = 2.0
SOCKET: Final = "agent.sock"
"""The agent's socket, in the folder of the stages' files."""
# An agent that restarts is heard before it is presumed dead: gRPC's own waits grow to two minutes.
_RECONNECT: Final = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))


class BubbleOffer:
    """The ephemeral slots that one daemon offers."""

    def __init__(
        self,
        slots: BubbleSlots,
        turns: Slots,
        core: SessionCore,
        *,
        taken_back: Callable[[], None],
        offered: Callable[[], None],
        end: Callable[[int, str], None],
        leave_s: float,
    ) -> None:
        """`taken_back` and `offered` inform the scheduler. `end` ends whoever is on a slot `leave_s` after the
        slot was taken back."""
        self._slots, self._turns, self._core = slots, turns, core
        self._taken_back, self._offered, self._end = taken_back, offered, end
        self._leave_s = leave_s

    async def watch(self) -> None:
        """Ask until this task is cancelled."""
        target = f"unix:{folder() / SOCKET}"
        options = (*proxy_options(target), *_RECONNECT)
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            stub: Any = bubble_pb2_grpc.BubbleServiceStub(channel)
            while True:
                jobs = None
                try:
                    answer = await stub.ListBubbleJobs(bubble_pb2.ListBubbleJobsRequest(), timeout=PATIENCE_S)
                    jobs = answer.jobs
                except grpc.aio.AioRpcError as error:
                    log.debug("the bubble agent does not answer: %s", error.details())
                try:
                    self._hear(jobs)
                except Exception:  # the worker survives, whatever an agent says
                    log.exception("cannot process the bubble agent's answer")
                await asyncio.sleep(EVERY_S)

    def _hear(self, jobs: Sequence[bubble_pb2.BubbleJob] | None) -> None:
        """Offer stages that have appeared, and take back those that are gone."""
        loop, slots = asyncio.get_running_loop(), self._slots
        news = slots.heard(jobs, loop.time())
        self._core.ephemeral, self._core.owned = slots.devices, slots.owned
        for device in slots.devices:
            self._turns.add(device.index)
        for index in news.taken_back:
            log.info("slot %d is withdrawn: %s", index, slots.gone[index])
            loop.call_later(self._leave_s, self._end_on, index)
        for index in slots.gone:
            _let_go(slots.gates[index])  # repeatedly: the rank may take a while to end
        if news.taken_back or news.offered:
            self._taken_back()
        if news.offered:
            self._offered()

    def _end_on(self, index: int) -> None:
        if why := self._slots.why_gone([index]):
            self._end(index, why)


def _let_go(gate: str) -> None:
    """Let the trial of a stage whose rank has ended run on to its next report, where it is told to exit. Nobody
    opens its gate any more, and the agent has released the file."""
    with suppress(StageFileError):
        file = StageFile.open(Path(gate))
        if not file.alive():
            file.words[AT["evict"]] = 1
        file.close()
