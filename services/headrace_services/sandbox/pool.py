"""Processes behind pipes: a call takes one, talks to it, and gives it back, or kills it.

Processes are spawned, never forked: gRPC's threads do not survive a fork. They start when they are first needed,
or at once under `async with`. One that dies by itself fails its call and is replaced. If one cannot start, the
call whose turn it is fails; for the other waiting calls, another start is tried.
"""

import asyncio
import logging
import pickle
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

from headrace.errors import InternalError, TooLargeError
from headrace_services.sandbox.limits import Limits
from headrace_services.sandbox.process import Answer, Run, serve
from headrace_services.sandbox.queue import Queue, busy

log = logging.getLogger(__name__)

START_LIMIT_S = 60.0
"""How long a process may take to load its libraries."""


class Worker:
    """One process and our end of its pipe."""

    def __init__(self, load: Callable[[], Run], limits: Limits) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self.pipe: Connection = ours
        self.process: SpawnProcess = context.Process(target=serve, args=(theirs, load, limits), daemon=True)
        self.process.start()
        theirs.close()
        if not ours.poll(START_LIMIT_S):
            self.kill()
            raise InternalError(f"a process did not start within {START_LIMIT_S:g} s")
        try:
            ours.recv_bytes()  # READY
        except (EOFError, OSError):
            self.kill()
            raise InternalError("a process did not start, possibly out of memory") from None

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        with suppress(OSError):
            self.pipe.close()
        self.process.join()


class Pool:
    """A number of processes; `async with` starts and ends them."""

    def __init__(self, load: Callable[[], Run], count: int, limits: Limits) -> None:
        self._load = load
        self._count = count
        self._limits = limits
        self._free: list[Worker] = []
        self._queue: Queue[Worker] = Queue(limits, count)
        self._all: set[Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        self._start_missing()
        await asyncio.gather(*self._starting)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End all processes; running calls fail."""
        self._closed = True
        await asyncio.gather(*self._starting, return_exceptions=True)
        for worker in list(self._all):
            worker.kill()
        self._all.clear()

    async def ask(
        self, task: str, request: bytes, *, caller: str = ""
    ) -> AsyncGenerator[tuple[Answer, bytes], None]:
        """Progress, then the result. Closing it early kills the process.

        Raises what the process raised, and TooLargeError if the answer takes too much memory or time, or too many
        other calls are waiting.
        """
        worker = await self._acquire(caller)
        done = False
        limit = asyncio.timeout(self._limits.time_s)
        try:
            try:
                async with limit:
                    await self._send(worker, task, request)
                    while not done:
                        kind, payload = await self._next(worker)
                        done = kind is not Answer.PROGRESS
                        if kind is Answer.ERROR:
                            raise pickle.loads(payload)  # noqa: S301  (our own process wrote it)
                        yield kind, payload
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TooLargeError(f"the answer takes longer than {self._limits.time_s:g} s") from None
        finally:
            self._queue.ended(caller)
            if done and not self._closed:
                self._give(worker)
            else:
                self._replace(worker)

    async def result(self, task: str, request: bytes, *, caller: str = "") -> bytes:
        """Only the result; cancelling it kills the process. Raises as `ask` does."""
        answers = self.ask(task, request, caller=caller)
        try:
            async for kind, payload in answers:
                if kind is Answer.RESULT:
                    return payload
        finally:
            await answers.aclose()
        raise InternalError("a process gave no answer")

    async def _acquire(self, caller: str) -> Worker:
        place = self._queue.join(caller)
        self._serve()
        self._start_missing()
        try:
            if self._starting:
                either: list[asyncio.Future[Any]] = [place, *self._starting]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([place], timeout=self._limits.wait_s)
        except asyncio.CancelledError:
            if not place.cancel() and not place.exception():  # a process became free at the same moment
                self._queue.ended(caller)
                self._give(place.result())
            raise
        finally:
            self._queue.leave(place)
        if not place.done():
            raise busy(f"no process was free for such an answer within {self._limits.wait_s:g} s")
        return place.result()

    def _give(self, worker: Worker) -> None:
        self._free.append(worker)
        self._serve()

    def _serve(self) -> None:
        """Gives a free process to the call whose turn it is."""
        while self._free and (place := self._queue.next()) is not None:
            place.set_result(self._free.pop())

    async def _send(self, worker: Worker, task: str, request: bytes) -> None:
        try:
            await asyncio.to_thread(worker.pipe.send_bytes, pickle.dumps((task, request)))
        except OSError:
            raise _died() from None

    async def _next(self, worker: Worker) -> tuple[Answer, bytes]:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        number = worker.pipe.fileno()
        loop.add_reader(number, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(number)
        try:
            kind, payload = pickle.loads(worker.pipe.recv_bytes())  # noqa: S301  (our own process wrote it)
        except (EOFError, OSError):
            raise _died() from None
        return Answer(kind), payload

    def _replace(self, worker: Worker) -> None:
        """Kill at once; the next one starts off the event loop."""
        self._all.discard(worker)
        worker.kill()
        self._serve()  # its caller may have another turn
        self._start_missing()

    def _start_missing(self) -> None:
        while len(self._all) + len(self._starting) < self._count and not self._closed:
            task = asyncio.get_running_loop().create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._started)

    async def _start(self) -> None:
        try:
            worker = await asyncio.to_thread(Worker, self._load, self._limits)
        except OSError as error:
            raise InternalError(f"a process could not be started: {error}") from error
        if self._closed:
            worker.kill()
        else:
            self._all.add(worker)
            self._give(worker)

    def _started(self, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("%s", error)
        self._queue.fail(error)
        if self._queue:
            self._start_missing()


def _died() -> InternalError:
    return InternalError("the process of this call died, possibly out of memory")
