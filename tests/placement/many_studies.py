"""Several studies on one cluster, in memory and on a virtual clock: production cycles over the simulator's rows.

Trials are rungs that take some time; after every event the accounts are checked.
"""

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

from headrace.spec import StudySpec
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import Assignment, Input, PlaceNow, ReportArrived
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.records import Checkpoint, Event, Lease
from headrace_services.scheduler.samplers import make_sampler
from headrace_services.scheduler.simulator.cluster import Machine
from headrace_services.scheduler.simulator.cluster_rows import ClusterRows
from headrace_services.scheduler.simulator.cycle import cycle
from headrace_services.scheduler.simulator.engine import MOST_TURNS
from headrace_services.scheduler.simulator.rows import StudyRows

Place = tuple[int, int]


def gpus(worker_id: int, count: int, model: str = "H200", memory_bytes: int = 80 << 30) -> Machine:
    """A worker's devices."""
    return Machine(id=worker_id, name=f"w{worker_id}", model=model, slots=count, memory_bytes=memory_bytes)


class ManyStudies:
    """A cluster, and a clock."""

    def __init__(
        self,
        *machines: Machine,
        step_s: Callable[[int, int, str], float] = lambda *_: 1.0,
        seed: int = 0,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.studies: dict[int, StudyRows] = {}
        self.cluster = ClusterRows(machines, quotas)
        self._step_s = step_s
        """Seconds a step takes, by study, trial and device model."""
        self._sequences: Counter[str] = Counter()
        self._heap: list[tuple[float, int, int, str]] = []
        self._count = 0
        self._random = random.Random(seed)

    def add(self, spec: StudySpec, project: str = DEFAULT_PROJECT) -> StudyRows:
        """Create a study and start it."""
        number = len(self.studies) + 1
        fold = Fold.empty(spec, make_sampler(spec))
        one = StudyRows(spec, fold, name=f"study-{number}", project=project, number=number)
        one.events = []
        self.studies[number] = one
        self.cycle(one, PlaceNow())
        return one

    def run(self, until_s: float) -> None:
        """Let rungs end until a given time, or until nothing runs."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, study_id, lease_id = heapq.heappop(self._heap)
            one = self.studies[study_id]
            lease = one.leases.get(lease_id)
            if lease is not None:
                self._report(one, lease)
        if not self._heap or self._heap[0][0] > until_s:
            self.now_s = until_s

    def cycle(self, one: StudyRows, *inputs: Input) -> None:
        """One cycle, and those of the studies to which it left slots, in turn."""
        todo = deque(self._woken(one, *inputs))
        for _ in range(MOST_TURNS * len(self.studies)):
            if not todo:
                break
            todo.extend(other for other in self._woken(todo.popleft(), PlaceNow()) if other not in todo)

    def _woken(self, one: StudyRows, *inputs: Input) -> list[StudyRows]:
        """Run one cycle. Returns the studies that must look for slots after it."""
        held = self.held(one.study.project)
        effects = cycle(one, self.studies, self.cluster, inputs, self.now_s).effects
        quota = self.cluster.quotas.get(one.study.project)
        assert quota is None or self.held(one.study.project) <= max(held, 1000 * quota)
        for order in effects.orders:
            if isinstance(order, Assignment):
                self._schedule(one, order.lease)
        self.check()
        others = self.studies.values() if effects.slots_left else [self.studies[key] for key in effects.wake]
        active = (other for other in others if other.study.state is StudyState.ACTIVE)
        return [other for other in active if other is not one]

    def held(self, project: str) -> int:
        """What a project's studies hold, in thousandths of slots, counted from their leases."""
        ours = [one for one in self.studies.values() if one.study.project == project]
        return sum(lease.milli * len(lease.slots) for one in ours for lease in one.leases.values())

    @property
    def preempted(self) -> int:
        """How many trials left their slots to others."""
        return sum(event.kind == "trial_preempted" for event in self._events())

    def _events(self) -> Sequence[Event]:
        return [event for one in self.studies.values() for event in one.events or ()]

    def _report(self, one: StudyRows, lease: Lease) -> None:
        trial = one.trials[lease.number]
        asked = self.cluster.leaving.get(lease.grant.id) if lease.grant else None
        step = trial.milestone or one.study.spec.max_steps
        per_step_s = self._step_s(one.study.id, lease.number, lease.model)
        if asked is not None and asked[1].at_report:
            step = min(step, lease.step + 1)
        self._sequences[lease.id] += 1
        report = ReportArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=self._sequences[lease.id],
            step=step,
            metrics={"loss": self._random.random()},
            checkpoint=Checkpoint(uri="c", step=step),
            train_time_s=per_step_s * (step - lease.step),
        )
        self.cycle(one, report)
        if lease.id in one.leases:
            self._schedule(one, one.leases[lease.id])

    def _schedule(self, one: StudyRows, lease: Lease) -> None:
        trial = one.trials[lease.number]
        steps = (trial.milestone or one.study.spec.max_steps) - lease.step
        per_step_s = self._step_s(one.study.id, lease.number, lease.model)
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + steps * per_step_s, self._count, one.study.id, lease.id))

    def check(self) -> None:
        """Check that nothing is given out twice, gangs are complete, and the studies' own accounts agree."""
        milli: Counter[Place] = Counter()
        memory: Counter[Place] = Counter()
        by_study: dict[int, int] = defaultdict(int)
        for one in self.studies.values():
            for lease in one.leases.values():
                assert len(set(lease.slots)) == len(lease.slots) >= 1
                by_study[one.study.id] += lease.milli * len(lease.slots)
                for index in lease.slots:
                    milli[lease.worker_id or 0, index] += lease.milli
                    memory[lease.worker_id or 0, index] += lease.memory_bytes
        for machine in self.cluster.machines.values():
            for slot in machine.devices():
                key = (slot.worker_id, slot.index)
                assert milli[key] <= 1000, f"slot {key} is given out {milli[key] / 1000} times"
                assert memory[key] <= slot.memory_bytes
        for one in self.studies.values():
            assert one.study.standing.usage.gpu_milli == by_study[one.study.id]
