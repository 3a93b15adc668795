"""The requests for logs that a session has sent to its worker and waits for."""

import asyncio

from headrace.errors import WorkerAwayError
from headrace.v1 import worker_pb2
from headrace_services.scheduler.session.outgoing import Outgoing

AT_ONCE = 4
"""How many parts are requested from one worker at once: few enough not to delay its other messages much."""
PATIENCE_S = 10.0


class LogAsks:
    """The requests of one session. Nothing is remembered when it ends."""

    def __init__(self, worker: str, outgoing: Outgoing) -> None:
        self._worker = worker
        self._outgoing = outgoing
        self._few = asyncio.Semaphore(AT_ONCE)
        self._last = 0
        self._waiting: dict[int, asyncio.Future[worker_pb2.LogChunk]] = {}

    async def ask(self, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        """Ask, and wait for the answer. Raises WorkerAwayError."""
        try:
            async with asyncio.timeout(PATIENCE_S), self._few:
                return await self._answer_to(ask)
        except TimeoutError:
            raise WorkerAwayError(f"worker '{self._worker}' did not answer within {PATIENCE_S:g} s") from None

    async def _answer_to(self, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        self._last += 1
        number = self._last
        numbered = worker_pb2.ReadLog()
        numbered.CopyFrom(ask)
        numbered.id = number
        answer: asyncio.Future[worker_pb2.LogChunk] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._outgoing.put(worker_pb2.SessionResponse(read_log=numbered))
            return await answer
        finally:
            del self._waiting[number]

    def answered(self, chunk: worker_pb2.LogChunk) -> None:
        """An answer arrived; do nothing if nobody waits for it."""
        waiting = self._waiting.get(chunk.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(chunk)

    def close(self) -> None:
        """The session has ended."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerAwayError(f"worker '{self._worker}' went away"))
