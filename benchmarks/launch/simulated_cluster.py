"""A cluster manager in memory, whose jobs run simulated workers: real joins and sessions, trials that train nothing.

    pending → running, and asks for a token → has joined → plays trials → leaves, or is killed with a trial

`members`, `submit`, `deliver` come from a loop's thread; jobs run on the event loop of the benchmark.
"""

import asyncio
import itertools
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from headrace import worker_labels
from headrace.launch.engine import Member, Stage
from headrace.target import Target
from headrace.v1 import event_pb2, worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub
from headrace_worker.join_token import GivenToken
from headrace_worker.joining import joined
from headrace_worker.reach import Joined

IDLE_S = 8.0
BEAT_S = 1.0
KILLED_EVERY = 10
"""One worker in so many is killed while it has a trial."""


@dataclass(slots=True)
class Job:
    """A job that has not ended."""

    number: int
    seat: int
    worker: str
    running: bool = False
    secret: str = ""
    has_token: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Seen:
    """What happened in one cluster."""

    started: int = 0
    most: int = 0
    """The most jobs at once, pending ones included."""
    joined: int = 0
    trials: int = 0
    killed: int = 0
    failures: list[str] = field(default_factory=list)


class SimulatedCluster:
    """An engine of one launch."""

    def __init__(self, name: str, target: Target, homes: Path, pending_s: float) -> None:
        self.seen = Seen()
        self._name, self._target, self._homes, self._pending_s = name, target, homes, pending_s
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def members(self) -> Sequence[Member]:
        """All jobs."""
        with self._lock:
            return tuple(
                Member(
                    seat=job.seat,
                    id=str(job.number),
                    stage=Stage.RUNNING if job.running else Stage.PENDING,
                    worker=job.worker,
                    awaits_token=job.running and not job.secret,
                )
                for job in self._jobs.values()
            )

    def submit(self, seats: Collection[int]) -> None:
        """One job for each seat."""
        with self._lock:
            for seat in seats:
                number = next(self._numbers)
                job = self._jobs[number] = Job(number, seat, f"{self._name}-{number}")
                self.seen.most = max(self.seen.most, len(self._jobs))
                self._loop.call_soon_threadsafe(self._start, job)

    def withdraw(self, member: Member) -> None:
        """Never needed: each seat has one job."""
        raise AssertionError(f"{member} shares its seat")

    def deliver(self, member: Member, secret: str) -> bool:
        """Hands a token to its job, unless that has ended."""
        with self._lock:
            job = self._jobs.get(int(member.id))
            if job is None or job.secret:
                return False
            job.secret = secret
        self._loop.call_soon_threadsafe(job.has_token.set)
        return True

    def shown(self, seats: Collection[int]) -> str:
        """What would be submitted."""
        return f"{self._name}: {sorted(seats)}"

    def _start(self, job: Job) -> None:
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job) -> None:
        try:
            await asyncio.sleep(self._pending_s)
            job.running = True
            self.seen.started += 1
            await job.has_token.wait()
            home = self._homes / job.worker
            home.mkdir(mode=0o700)
            reach = await joined(self._target, home, job.worker, GivenToken(job.secret))
            assert reach is not None
            self.seen.joined += 1
            session = Session(job.worker, reach, killed=job.number % KILLED_EVERY == 0)
            self.seen.trials += await session.run()
            self.seen.killed += session.has_trial
        except Exception as error:  # noqa: BLE001  # whatever it is, the benchmark fails
            self.seen.failures.append(f"{job.worker}: {error!r}")
        finally:
            with self._lock:
                del self._jobs[job.number]


class Session:
    """One worker with one slot: plays two trials, or leaves when none comes."""

    def __init__(self, name: str, reach: Joined, *, killed: bool) -> None:
        self._name, self._reach, self._killed = name, reach, killed
        self._said: asyncio.Queue[worker_pb2.SessionRequest] = asyncio.Queue()
        self._held: list[event_pb2.LeaseRef] = []
        self._sequence = 0
        self._early: worker_pb2.SessionResponse | None = None
        """An assignment that came before the acknowledgement of the last trial's end."""

    @property
    def has_trial(self) -> bool:
        """Whether it ended with a trial, as if it had been killed."""
        return bool(self._held)

    async def run(self, trials: int = 2) -> int:
        """From hello to the end; returns how many trials it played."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = self._reach.replicas[0]
        played = 0
        async with grpc.aio.secure_channel(address, self._reach.credentials(), options=options) as channel:
            self._call = WorkerServiceStub(channel).Session()
            tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._beat())]
            self._say(hello=self._hello())
            try:
                with suppress(TimeoutError):  # idle
                    while played < trials:
                        assign = (await self._until("assign")).assign
                        self._held = [assign.lease]
                        if self._killed:
                            return played
                        await self._play(assign)
                        self._held = []
                        played += 1
                self._say(heartbeat=worker_pb2.Heartbeat(leaving="it was idle"))
                await asyncio.sleep(0.2)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._call.cancel()
        return played

    async def _play(self, assign: worker_pb2.Assign) -> None:
        report = worker_pb2.Report(
            sequence=self._next(), lease=assign.lease, step=1, metrics={assign.metric: 0.5}
        )
        self._say(report=report)
        await self._until("decision", "decisions")
        last = self._next()
        exited = worker_pb2.Exited(
            sequence=last, lease=assign.lease, outcome=worker_pb2.EXIT_OUTCOME_FINISHED
        )
        self._say(exited=exited)
        async with asyncio.timeout(IDLE_S):
            while True:
                answer = await self._read()
                if last in (*answer.acknowledged, *answer.ack.sequences):
                    return

    def _hello(self) -> worker_pb2.Hello:
        return worker_pb2.Hello(
            protocol=1,
            worker=self._name,
            incarnation="1",
            devices=[worker_pb2.Device(index=0, kind=worker_pb2.DEVICE_KIND_CPU, model="simulated")],
            labels={worker_labels.EPHEMERAL: worker_labels.YES},
            log_dir="/simulated",
        )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _say(self, **message: object) -> None:
        self._said.put_nowait(worker_pb2.SessionRequest(**message))  # type: ignore[arg-type]  # one of the oneof

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._said.get())

    async def _beat(self) -> None:
        while True:
            self._say(heartbeat=worker_pb2.Heartbeat(held=self._held))
            await asyncio.sleep(BEAT_S)

    async def _until(self, *kinds: str) -> worker_pb2.SessionResponse:
        if "assign" in kinds and self._early is not None:
            early, self._early = self._early, None
            return early
        async with asyncio.timeout(IDLE_S):
            while (answer := await self._read()).WhichOneof("message") not in kinds:
                pass
        if "assign" in kinds:
            self._early = None
        return answer

    async def _read(self) -> worker_pb2.SessionResponse:
        answer = await self._call.read()
        if not isinstance(answer, worker_pb2.SessionResponse):
            raise ConnectionError("the scheduler ended the session")
        if answer.HasField("assign"):
            self._early = answer
        return answer
