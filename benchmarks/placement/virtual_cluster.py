"""A virtual cluster that the production placer packs: jobs of mixed sizes on mixed machines, one event at a time.

A job is a trial of a study: it runs rung by rung, leaves at the end of a rung if it was asked to (and comes back
with the rest), and ends after its last rung. Rung times are random; the placer knows earlier measurements, which
differ from the real times by the noise. Every placement is checked against the machines' capacity, in this
module's own accounts, so that a placer that over-commits is caught.
"""

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from headrace_services.scheduler.core.placement import (
    BestFit,
    Cluster,
    Placement,
    Placer,
    Request,
    Reservation,
    Running,
    Waiting,
)
from headrace_services.scheduler.core.records import Slot

GIB = 1 << 30
SIZES: tuple[tuple[str, int, int, float], ...] = (
    ("1/4", 1, 250, 0.25),
    ("1/2", 1, 500, 0.15),
    ("1", 1, 1000, 0.35),
    ("2", 2, 1000, 0.12),
    ("4", 4, 1000, 0.08),
    ("8", 8, 1000, 0.05),
)
"""Name, slots, thousandths of each, and relative frequency."""
LONGEST_RUNG_S = 120.0
"""On a device of speed 1, before the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One worker. `speed` divides the times of the jobs."""

    id: int
    model: str
    slots: int
    memory_gib: int
    speed: float


MACHINES: tuple[Machine, ...] = (
    *(Machine(id=n, model="H200", slots=8, memory_gib=141, speed=2.0) for n in range(1, 4)),
    *(Machine(id=n, model="A100", slots=8, memory_gib=80, speed=1.0) for n in range(4, 7)),
    *(Machine(id=n, model="L4", slots=4, memory_gib=24, speed=0.5) for n in range(7, 10)),
)


@dataclass(slots=True)
class Job:
    """A trial."""

    number: int
    study: int
    size: str
    request: Request
    rungs_left: int
    rung_s: float
    """One rung on a device of speed 1, as measured before; the real ones differ by the noise."""
    submitted_s: float
    priority: int = 0
    first_start_s: float | None = None
    waits_since_s: float = 0.0
    reserved_s: float | None = None
    longest_rung_s: float = LONGEST_RUNG_S
    """The longest rung that any job can have on the machine whose slots are kept for it."""


@dataclass(slots=True)
class Run:
    """A job on its slots."""

    job: Job
    placement: Placement
    speed: float
    model: str
    started_s: float
    rung_ends_s: float
    predicted_end_s: float
    asked: bool = False
    attempt: int = 0


@dataclass(slots=True)
class Tally:
    """The statistics of a run."""

    events: int = 0
    placed: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    over_commits: int = 0
    """Devices that were given out beyond their capacity."""
    partial_gangs: int = 0
    """Grants of fewer slots than requested, or over several machines."""
    unsuitable: int = 0
    """Grants of the wrong type, with too little memory, or with another share than requested."""
    left_for_others: int = 0
    first_waits_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    reserved_waits_s: list[float] = field(default_factory=list)
    """From the reservation to the start."""
    reserved_waits: list[float] = field(default_factory=list)
    """The same in units of the longest rung that any job can have on the machine whose slots were kept."""
    busy_s: float = 0.0
    """Slot seconds, weighted by speed, that were held while some job waited; and those available."""
    offered_s: float = 0.0
    work_s: float = 0.0
    """Slot seconds at speed 1 of all completed work."""
    end_s: float = 0.0


class VirtualCluster:
    """Keeps `backlog` jobs waiting and runs until a number of events have happened."""

    def __init__(
        self,
        placer: Placer | None = None,
        *,
        seed: int = 0,
        machines: Sequence[Machine] = MACHINES,
        backlog: int = 40,
        noise: float = 0.15,
        studies: int = 4,
        sizes: Sequence[tuple[str, int, int, float]] = SIZES,
        priority: Callable[[random.Random], int] = lambda _: 0,
    ) -> None:
        self.placer: Placer = placer or BestFit()
        self.tally = Tally()
        self.now_s = 0.0
        self.waiting: list[Job] = []
        self.running: dict[int, Run] = {}
        self.reservations: list[Reservation] = []
        """In these, `ready_in_s` is the time on the virtual clock."""
        self._random = random.Random(seed)
        self._machines = {machine.id: machine for machine in machines}
        self._slots = {(slot.worker_id, slot.index): slot for machine in machines for slot in _slots(machine)}
        self._held: Counter[tuple[int, int]] = Counter()
        self._memory: Counter[tuple[int, int]] = Counter()
        self._heap: list[tuple[float, int, int, int]] = []
        self._numbers = 0
        self._backlog = backlog
        self._noise = noise
        self._studies = studies
        self._sizes = sizes
        self._priority = priority

    def run(self, events: int) -> Tally:
        """Run that many events, which are ends of rungs."""
        self._fill()
        self._plan()
        while self.tally.events < events:
            end_s, _, number, attempt = heapq.heappop(self._heap)
            run = self.running.get(number)
            if run is None or run.attempt != attempt:
                continue
            self._account(end_s)
            self.tally.events += 1
            self._rung_ended(run)
            self._fill()
            self._plan()
        self.tally.end_s = self.now_s
        return self.tally

    # --- jobs -----------------------------------------------------------------------------------------

    def _fill(self) -> None:
        while len(self.waiting) < self._backlog:
            self.submit()

    def submit(self, size: str | None = None) -> Job:
        """Add a job at the end of the queue."""
        names = [entry[0] for entry in self._sizes]
        drawn = self._random.choices(names, [entry[3] for entry in self._sizes])[0]
        name, slots, milli, _ = self._sizes[names.index(size or drawn)]
        self._numbers += 1
        memory = self._random.choice([0, 0, 0, 8, 16, 60]) * GIB
        request = Request(
            slots=slots,
            milli=milli,
            memory_bytes=memory if milli == 1000 else self._random.choice([0, 4, 12]) * GIB,
            types=("H200", "A100") if slots > 4 or self._random.random() < 0.1 else (),
        )
        job = Job(
            number=self._numbers,
            study=self._random.randrange(self._studies),
            size=name,
            request=request,
            rungs_left=self._random.choice([1, 1, 1, 2, 2, 3, 4]),
            rung_s=self._random.uniform(LONGEST_RUNG_S / 6, LONGEST_RUNG_S),
            submitted_s=self.now_s,
            waits_since_s=self.now_s,
            priority=self._priority(self._random),
        )
        self.waiting.append(job)
        return job

    def _rung_ended(self, run: Run) -> None:
        job = run.job
        job.rungs_left -= 1
        self.tally.work_s += run.placement.milli / 1000 * len(run.placement.slots) * job.rung_s
        if not job.rungs_left:
            self._end(run)
        elif run.asked:
            self._end(run)
            self.tally.left_for_others += 1
            job.waits_since_s = self.now_s
            self.waiting.insert(0, job)
        else:
            self._begin_rung(run)

    def _begin_rung(self, run: Run) -> None:
        predicted_s = run.job.rung_s / run.speed
        real_s = predicted_s * self._random.uniform(1 - self._noise, 1 + self._noise)
        run.started_s, run.predicted_end_s = self.now_s, self.now_s + predicted_s
        run.rung_ends_s = self.now_s + real_s
        run.attempt += 1
        self._push(run, run.rung_ends_s)

    def _push(self, run: Run, at_s: float) -> None:
        heapq.heappush(self._heap, (at_s, self._numbers, run.job.number, run.attempt))

    def _end(self, run: Run) -> None:
        del self.running[run.job.number]
        for slot in run.placement.slots:
            key = (slot.worker_id, slot.index)
            self._held[key] -= run.placement.milli
            self._memory[key] -= run.placement.memory_bytes

    def _account(self, until_s: float) -> None:
        if self.waiting:
            passed_s = until_s - self.now_s
            for key, slot in self._slots.items():
                speed = self._machines[slot.worker_id].speed
                self.tally.offered_s += passed_s * speed
                self.tally.busy_s += passed_s * speed * self._held[key] / 1000
        self.now_s = until_s

    # --- the placer -------------------------------------------------------------------------------------

    def _plan(self) -> None:
        jobs = {job.number: job for job in self.waiting}
        plan = self.placer.plan(self._cluster(), [self._as_waiting(job) for job in self.waiting])
        for placement in plan.placements:
            self._start(jobs[placement.key[1]], placement)
        started = {placement.key[1] for placement in plan.placements}
        self.waiting = [job for job in self.waiting if job.number not in started]
        known = {reservation.key for reservation in self.reservations}
        self.reservations = [
            replace(r, ready_in_s=None if r.ready_in_s is None else self.now_s + r.ready_in_s)
            for r in plan.reservations
            if r.key[1] in jobs and r.key[1] not in started
        ]
        for reservation in self.reservations:
            if reservation.key not in known:
                job = jobs[reservation.key[1]]
                job.reserved_s = self.now_s
                job.longest_rung_s = LONGEST_RUNG_S / self._machines[reservation.worker_id].speed
        for ask in plan.asks:
            run = self.running[int(ask.grant_id)]
            run.asked = True
            if ask.at_report:  # there are four reports per rung
                quarter_s = (run.rung_ends_s - run.started_s) / 4
                ahead = max(1, int((self.now_s - run.started_s) / quarter_s) + 1)
                run.attempt += 1
                run.job.rungs_left += 1  # it repeats what it loses of the rung
                self._push(run, min(run.rung_ends_s, run.started_s + ahead * quarter_s))

    def _cluster(self) -> Cluster:
        devices = tuple(slot.less(self._held[key], self._memory[key]) for key, slot in self._slots.items())
        running = tuple(
            Running(
                key=(run.job.study, number),
                grant_id=str(number),
                worker_id=run.placement.slots[0].worker_id,
                slots=tuple(slot.index for slot in run.placement.slots),
                milli=run.placement.milli,
                priority=run.job.priority,
                leaves_in_s=max(0.0, run.predicted_end_s - self.now_s),
                asked=run.asked,
            )
            for number, run in self.running.items()
        )
        reservations = tuple(
            replace(r, ready_in_s=None if r.ready_in_s is None else max(0.0, r.ready_in_s - self.now_s))
            for r in self.reservations
        )
        return Cluster(devices=devices, running=running, reservations=reservations, now_s=self.now_s)

    def _as_waiting(self, job: Job) -> Waiting:
        speeds = {machine.model: machine.speed for machine in self._machines.values()}
        return Waiting(
            key=(job.study, job.number),
            request=job.request,
            run_s={model: job.rung_s / speed for model, speed in speeds.items()},
            preference={model: -speed for model, speed in speeds.items()},
            priority=job.priority,
            group=job.study,
        )

    def _start(self, job: Job, placement: Placement) -> None:
        self._check(job, placement)
        machine = self._machines[placement.slots[0].worker_id]
        run = Run(
            job=job,
            placement=placement,
            speed=machine.speed,
            model=machine.model,
            started_s=self.now_s,
            rung_ends_s=self.now_s,
            predicted_end_s=self.now_s,
            asked=placement.rule == "backfill",  # the slots belong to another job from its next rung on
            attempt=self.tally.events,
        )
        self.running[job.number] = run
        for slot in placement.slots:
            key = (slot.worker_id, slot.index)
            self._held[key] += placement.milli
            self._memory[key] += placement.memory_bytes
            self._check_slot(key)
        self.tally.placed[job.size] += 1
        self.tally.rules[placement.rule] += 1
        if job.first_start_s is None:
            job.first_start_s = self.now_s
            self.tally.first_waits_s[job.size].append(self.now_s - job.submitted_s)
        if job.reserved_s is not None:
            waited_s = self.now_s - job.reserved_s
            self.tally.reserved_waits_s.append(waited_s)
            self.tally.reserved_waits.append(waited_s / job.longest_rung_s)
            job.reserved_s = None
        self._begin_rung(run)

    def _check(self, job: Job, placement: Placement) -> None:
        """Count what a placer must never do."""
        request = job.request
        keys = {(slot.worker_id, slot.index) for slot in placement.slots}
        if len(keys) != request.slots or len({worker for worker, _ in keys}) != 1:
            self.tally.partial_gangs += 1
        machine = self._machines[placement.slots[0].worker_id]
        wrong_type = bool(request.types) and machine.model not in request.types
        too_small = machine.memory_gib * GIB < request.memory_bytes
        if placement.milli != request.milli or wrong_type or too_small:
            self.tally.unsuitable += 1

    def _check_slot(self, key: tuple[int, int]) -> None:
        slot = self._slots[key]
        if self._held[key] > 1000 or self._memory[key] > slot.memory_bytes:
            self.tally.over_commits += 1


def _slots(machine: Machine) -> list[Slot]:
    return [
        Slot(
            worker_id=machine.id,
            index=index,
            kind="GPU",
            memory_bytes=machine.memory_gib * GIB,
            labels={},
            worker_name=f"{machine.model}-{machine.id}",
            incarnation="1",
            log_dir="",
            model=machine.model,
        )
        for index in range(machine.slots)
    ]
