"""Worker processes behind pipes: a call takes one, talks to it, and gives it back, or kills it when it is cancelled.

Processes are spawned, never forked: gRPC's threads do not survive a fork. A worker that dies by itself (out of memory)
fails its call with InternalError and is replaced.
"""

import asyncio
import pickle
from collections.abc import AsyncGenerator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from headrace.errors import InternalError
from headrace_services.planner.service.work import Answer, Task, work


class Worker:
    """One process and our end of its pipe."""

    def __init__(self) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        self.pipe: Connection = ours
        self.process: SpawnProcess = context.Process(target=work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        """Ends the process at once."""
        self.process.kill()
        self.pipe.close()
        self.process.join()


class Pool:
    """A fixed number of workers; `async with` starts and ends them."""

    def __init__(self, workers: int) -> None:
        self._count = workers
        self._free: asyncio.Queue[Worker] = asyncio.Queue()
        self._all: set[Worker] = set()
        self._replacing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(self._start() for _ in range(self._count)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in list(self._replacing):
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for worker in list(self._all):
            worker.kill()

    async def ask(self, task: Task, request: bytes) -> AsyncGenerator[tuple[Answer, bytes], None]:
        """Progress, then the result. Raises what the worker raised. Closing it early kills the worker."""
        worker = await self._free.get()
        done = False
        try:
            worker.pipe.send_bytes(pickle.dumps((str(task), request)))
            while not done:
                kind, payload = await self._next(worker)
                done = kind is not Answer.PROGRESS
                if kind is Answer.ERROR:
                    raise pickle.loads(payload)  # noqa: S301  (our own worker wrote it)
                yield kind, payload
        finally:
            if done:
                self._free.put_nowait(worker)
            else:
                self._replace(worker)

    async def _next(self, worker: Worker) -> tuple[Answer, bytes]:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        number = worker.pipe.fileno()
        loop.add_reader(number, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(number)
        try:
            kind, payload = pickle.loads(worker.pipe.recv_bytes())  # noqa: S301  (our own worker wrote it)
        except (EOFError, OSError):
            raise InternalError(
                "the planner's process died on this call, perhaps for want of memory"
            ) from None
        return Answer(kind), payload

    def _replace(self, worker: Worker) -> None:
        """Kills at once; the next one starts beside the event loop."""
        self._all.discard(worker)
        worker.kill()
        task = asyncio.get_running_loop().create_task(self._start())
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _start(self) -> None:
        worker = await asyncio.to_thread(Worker)
        self._all.add(worker)
        self._free.put_nowait(worker)
