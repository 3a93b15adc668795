"""Processes behind pipes: a call takes one, talks to it, and gives it back, or kills it.

Processes are spawned, never forked: gRPC's threads do not survive a fork. They start when they are first asked for, or
at once (`start`). One that dies by itself fails its call and is replaced.
"""

import asyncio
import pickle
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from headrace.errors import InternalError, TooLargeError
from headrace_services.apart.process import Answer, Run, serve

START_LIMIT_S = 60.0
"""How long a process may take to load its libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may have."""

    memory_bytes: int
    """Beyond what the libraries of a process take."""
    time_s: float
    waiting: int
    """How many calls may wait for a process; more are refused."""


class Worker:
    """One process and our end of its pipe."""

    def __init__(self, load: Callable[[], Run], limits: Limits) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self.pipe: Connection = ours
        self.process: SpawnProcess = context.Process(
            target=serve, args=(theirs, load, limits.memory_bytes), daemon=True
        )
        self.process.start()
        theirs.close()
        if not ours.poll(START_LIMIT_S):
            self.kill()
            raise InternalError(f"a process did not start within {START_LIMIT_S:g} s")
        try:
            ours.recv_bytes()  # READY
        except (EOFError, OSError):
            self.kill()
            raise InternalError("a process did not start, perhaps for want of memory") from None

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
        self._free: asyncio.Queue[Worker] = asyncio.Queue()
        self._all: set[Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        self._waiting = 0
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
        """End all processes; calls that still run fail."""
        self._closed = True
        await asyncio.gather(*self._starting, return_exceptions=True)
        for worker in list(self._all):
            worker.kill()
        self._all.clear()

    async def ask(self, task: str, request: bytes) -> AsyncGenerator[tuple[Answer, bytes], None]:
        """Progress, then the result. Closing it early kills the process.

        Raises what the process raised, and TooLargeError where the answer takes too much memory or time, or too many
        others wait for one.
        """
        worker = await self._take()
        done = False
        limit = asyncio.timeout(self._limits.time_s)
        try:
            try:
                async with limit:
                    await asyncio.to_thread(worker.pipe.send_bytes, pickle.dumps((task, request)))
                    while not done:
                        kind, payload = await self._next(worker)
                        done = kind is not Answer.PROGRESS
                        if kind is Answer.ERROR:
                            raise pickle.loads(payload)  # noqa: S301  (our own process wrote it)
                        yield kind, payload
            except TimeoutError:
                if not limit.expired():
                    raise
                raise TooLargeError(
                    f"the answer takes longer than {self._limits.time_s:g} s", remedy="Ask for less."
                ) from None
        finally:
            if done and not self._closed:
                self._free.put_nowait(worker)
            else:
                self._replace(worker)

    async def result(self, task: str, request: bytes) -> bytes:
        """The result alone; cancelling it kills the process. Raises as `ask` does."""
        answers = self.ask(task, request)
        try:
            async for kind, payload in answers:
                if kind is Answer.RESULT:
                    return payload
        finally:
            await answers.aclose()
        raise InternalError("a process gave no answer")

    async def _take(self) -> Worker:
        if self._free.empty():
            if self._waiting >= self._limits.waiting:
                raise TooLargeError(
                    f"{self._waiting} callers wait for such an answer already",
                    remedy="Try again in a moment.",
                )
            self._start_missing()
        self._waiting += 1
        try:
            return await self._free.get()
        finally:
            self._waiting -= 1

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
            raise InternalError("the process of this call died, perhaps for want of memory") from None
        return Answer(kind), payload

    def _replace(self, worker: Worker) -> None:
        """Kill at once; the next one starts beside the event loop."""
        self._all.discard(worker)
        worker.kill()
        self._start_missing()

    def _start_missing(self) -> None:
        while len(self._all) + len(self._starting) < self._count and not self._closed:
            task = asyncio.get_running_loop().create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start(self) -> None:
        worker = await asyncio.to_thread(Worker, self._load, self._limits)
        self._all.add(worker)
        if self._closed:
            worker.kill()
        else:
            self._free.put_nowait(worker)
