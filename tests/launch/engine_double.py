"""A cluster manager in memory with Slurm's rules: seats, a queue, lost answers, requeued jobs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace.launch.engine import EngineError, Member, Stage


@dataclass(slots=True)
class Job:
    """A job that has not ended."""

    id: int
    seat: int
    running: bool = False
    held: bool = False
    token: str = ""
    restarts: int = 0

    @property
    def worker(self) -> str:
        """The name of its worker."""
        return f"double-{self.id}-{self.seat}"


class EngineDouble:
    """Carries out what it is asked, or loses its answer, or dies on the way."""

    def __init__(self, *, tokens: bool = False) -> None:
        self.jobs: list[Job] = []
        self.submitted = 0
        self.most_running = 0
        self.tokens = tokens
        self.refuses = ""
        self.breaks = ""
        """Why no token can be delivered."""
        self.loses_answers = False
        self.dies_after: int | None = None
        """After this many requests the process of the loop is killed."""
        self._last = 100

    # The protocol.

    def members(self) -> Sequence[Member]:
        """All jobs."""
        return tuple(map(self._member, self.jobs))

    def submit(self, seats: Collection[int]) -> None:
        """One job for each seat."""
        for seat in seats:
            self._request()
            if self.refuses:
                raise EngineError(self.refuses)
            self._last += 1
            self.submitted += 1
            self.jobs.append(Job(self._last, seat))
            if self.loses_answers:
                raise EngineError("no answer within 30 s")

    def withdraw(self, member: Member) -> None:
        """Holds a job, then cancels it if it is pending beside another one; else it may start again."""
        for job in [job for job in self.jobs if str(job.id) == member.id]:
            self._request()
            job.held = True
            self._request()
            taken = any(one.seat == job.seat and one is not job and not one.held for one in self.jobs)
            if taken and not job.running:
                self.jobs.remove(job)
            job.held = False

    def deliver(self, member: Member, secret: str) -> bool:
        """Gives a token to a job that has none."""
        self._request()
        if self.breaks:
            raise EngineError(self.breaks)
        for job in self.jobs:
            if str(job.id) == member.id and not job.token:
                job.token = secret
                return True
        return False

    def shown(self, seats: Collection[int]) -> str:
        """What would be submitted."""
        return f"submit {sorted(seats)}"

    # What happens in the cluster.

    def start(self, room: int = 1000) -> list[Job]:
        """Starts pending jobs, in order, while there is room; never two on one seat."""
        started = []
        for job in self.jobs:
            busy = {one.seat for one in self.jobs if one.running}
            if not job.running and not job.held and job.seat not in busy and len(busy) < room:
                job.running = True
                started.append(job)
        self.most_running = max(self.most_running, sum(job.running for job in self.jobs))
        return started

    def end(self, job: Job) -> None:
        """The job ends."""
        self.jobs.remove(job)

    def requeue(self, job: Job) -> None:
        """The job starts again, under the same name, and without its token."""
        job.running, job.token = False, ""
        job.restarts += 1

    def _request(self) -> None:
        if self.dies_after is not None:
            if self.dies_after <= 0:
                raise KilledError
            self.dies_after -= 1

    def _member(self, job: Job) -> Member:
        return Member(
            seat=job.seat,
            id=str(job.id),
            stage=Stage.RUNNING if job.running else Stage.PENDING,
            worker=job.worker,
            held=job.held and not job.running,
            awaits_token=self.tokens and job.running and not job.token,
        )


class KilledError(BaseException):
    """Ends the loop as SIGKILL does: nothing catches it."""
