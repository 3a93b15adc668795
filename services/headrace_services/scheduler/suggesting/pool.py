"""A fixed number of processes that hold models. Each study belongs to one of them, which learns its results once.

Processes are spawned when they are first needed, never forked: gRPC's threads do not survive a fork. A process
that dies or takes too long is replaced at the next question, with an empty memory. `Memory` is this side's record
of what a process holds; it is emptied with the process.
"""

import asyncio
import pickle
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from headrace_services.scheduler.samplers.protocol import Suggestion
from headrace_services.scheduler.suggesting.process import Failed, Question, work

MODELS_KEPT = 32
"""How many studies' models a process holds; the least recently used one is dropped."""

START_LIMIT_S = 60.0
"""How long a process may take to load its libraries."""

Work = Callable[[Connection], None]


class AttemptFailedError(Exception):
    """A process raised, died or took too long."""


@dataclass(slots=True)
class Learnt:
    """What a process was given of a study."""

    level: int
    among: tuple[int, ...]
    """The rungs of a model over all of them. An extension of the study changes them, and the model starts over."""
    cursor: int
    results: int
    warm: int


@dataclass(slots=True)
class _Seat:
    """A place for a process, with what the process in it was given."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    process: SpawnProcess | None = None
    pipe: Connection | None = None
    learnt: OrderedDict[str, Learnt] = field(default_factory=OrderedDict)


class Pool:
    """Asks processes for proposals."""

    def __init__(self, processes: int, *, limit_s: float, work: Work = work) -> None:
        self._seats = [_Seat() for _ in range(max(1, processes))]
        self._limit_s = limit_s
        self._work = work
        self._closed = False

    def turn(self, study_id: int) -> asyncio.Lock:
        """Held while a study's data are read and its process is asked, so that the record of what the process
        knows stays correct."""
        return self._seat(study_id).turn

    def learnt(self, study_id: int, study: str) -> Learnt | None:
        """What the study's process was given; None for nothing."""
        seat = self._seat(study_id)
        if seat.process is None or not seat.process.is_alive():
            self._empty(seat)
        return seat.learnt.get(study)

    async def ask(self, study_id: int, question: Question, now: Learnt) -> Suggestion:
        """The answer to a question, after which the process has learned `now`. Raises AttemptFailedError."""
        seat = self._seat(study_id)
        done = False
        try:
            if seat.process is None:
                await asyncio.to_thread(self._start, seat)
            forget = next(iter(seat.learnt)) if len(seat.learnt) >= MODELS_KEPT else None
            if forget not in (None, question.study):
                del seat.learnt[forget]
                question = replace(question, forget=forget)
            # A new model loads its libraries and learns all results so far.
            limit_s = self._limit_s + (START_LIMIT_S if question.begin is not None else 0.0)
            async with asyncio.timeout(limit_s):
                reply = await self._exchange(seat, question)
            done = True
        except TimeoutError:
            raise AttemptFailedError(f"no answer within {self._limit_s:g} s") from None
        except (EOFError, OSError):
            raise AttemptFailedError("its process died, possibly out of memory") from None
        finally:
            if not done:
                self._empty(seat)
        if isinstance(reply, Failed):
            seat.learnt.pop(question.study, None)
            raise AttemptFailedError(reply.error)
        seat.learnt[question.study] = now
        seat.learnt.move_to_end(question.study)
        return reply

    def close(self) -> None:
        """End all processes at once, and those that are being started as soon as they exist."""
        self._closed = True
        for seat in self._seats:
            self._empty(seat)

    def _seat(self, study_id: int) -> _Seat:
        return self._seats[study_id % len(self._seats)]

    def _start(self, seat: _Seat) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=self._work, args=(theirs,), daemon=True, name="headrace sampler")
        process.start()
        theirs.close()
        seat.process, seat.pipe = process, ours
        if not ours.poll(START_LIMIT_S):
            raise TimeoutError
        ours.recv()  # READY
        if self._closed:
            process.kill()

    async def _exchange(self, seat: _Seat, question: Question) -> Suggestion | Failed:
        """Send and receive. A message may be longer than the pipe holds, so a thread sends it."""
        pipe = seat.pipe
        assert pipe is not None
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        await asyncio.to_thread(pipe.send_bytes, pickle.dumps(question))
        loop.add_reader(pipe.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            # otherwise `_empty` has closed it, and its descriptor may belong to something else
            if not pipe.closed:
                loop.remove_reader(pipe.fileno())
        reply: Suggestion | Failed = pickle.loads(pipe.recv_bytes())  # noqa: S301  (our own process wrote it)
        return reply

    def _empty(self, seat: _Seat) -> None:
        """Kill the process of a seat, if there is one."""
        process, pipe = seat.process, seat.pipe
        seat.process = seat.pipe = None
        seat.learnt.clear()
        if process is not None:
            process.kill()
            process.join()
        if pipe is not None:
            with suppress(RuntimeError):  # no event loop runs any more
                asyncio.get_running_loop().remove_reader(pipe.fileno())
            with suppress(OSError):
                pipe.close()
