"""Several studies on one cluster, in memory and on a virtual clock: the production step core, rows in dictionaries.

What `step/transaction` and `step/cluster_rows` do over Postgres happens here over dictionaries, in the same order.
Trials are rungs that take their time; after every event the accounts are checked.
"""

import heapq
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from headrace.spec import StudySpec
from headrace_services.scheduler.arrivals import Arrival, Assignment, Kick, ReportArrived
from headrace_services.scheduler.lifecycle import State, StudyState
from headrace_services.scheduler.records import Checkpoint, Lease, Leaving, Slot, Study, Trial
from headrace_services.scheduler.step import core, placing, sharing
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.placement import Request, Running
from headrace_services.scheduler.step.placement.shares import Share, Totals
from headrace_services.scheduler.step.placement.speeds import grant_kind, step_s
from headrace_services.scheduler.step.state import StepState

Place = tuple[int, int]


def gpus(worker_id: int, count: int, model: str = "H200", memory_bytes: int = 80 << 30) -> list[Slot]:
    """A worker's devices."""
    return [
        Slot(
            worker_id=worker_id,
            index=index,
            kind="GPU",
            memory_bytes=memory_bytes,
            labels={},
            worker_name=f"w{worker_id}",
            incarnation="1",
            log_dir="",
            model=model,
        )
        for index in range(count)
    ]


class OneStudy:
    """The rows of one study."""

    def __init__(self, spec: StudySpec, number: int) -> None:
        self.study = Study(
            id=number,
            uid=f"s{number}",
            name=f"study-{number}",
            spec=spec,
            state=StudyState.ACTIVE,
            detail="",
            cursor=0,
            next_number=0,
            sampled=0,
            reports=0,
            metric_seen=False,
            early_failures=0,
            create_time=datetime(2000, 1, 1, tzinfo=UTC),
            end_time=None,
        )
        self.cache = StudyCache.empty(spec)
        self.trials: dict[int, Trial] = {}
        self.leases: dict[str, Lease] = {}
        self.slots: dict[str, tuple[Slot, ...]] = {}
        self.sequences: Counter[str] = Counter()
        self.events: list[Any] = []

    def share(self) -> Share:
        """As other studies read it."""
        return Share.of(self.study)


class ManyStudies:
    """A cluster, and a clock."""

    def __init__(
        self,
        slots: list[Slot],
        *,
        step_s: Callable[[int, int, str], float] = lambda *_: 1.0,
        seed: int = 0,
    ) -> None:
        self.now_s = 0.0
        self.studies: dict[int, OneStudy] = {}
        self.asked: dict[str, Leaving] = {}
        self.waits_s: dict[tuple[int, int], float] = {}
        self.preempted = 0
        self._all = {(slot.worker_id, slot.index): slot for slot in slots}
        self._step_s = step_s
        """Seconds a step takes, by study, trial and device model."""
        self._heap: list[tuple[float, int, int, str]] = []
        self._count = 0
        self._random = random.Random(seed)

    def add(self, spec: StudySpec) -> OneStudy:
        """Create a study and let it begin."""
        one = OneStudy(spec, len(self.studies) + 1)
        self.studies[one.study.id] = one
        self.step(one, Kick())
        return one

    def run(self, until_s: float) -> None:
        """Let rungs end until a time, or until nothing runs."""
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, study_id, lease_id = heapq.heappop(self._heap)
            one = self.studies[study_id]
            lease = one.leases.get(lease_id)
            if lease is not None:
                self._report(one, lease)
        if not self._heap or self._heap[0][0] > until_s:
            self.now_s = until_s

    # --- steps ------------------------------------------------------------------------------------------

    def step(self, one: OneStudy, *arrivals: Arrival) -> None:
        """One step, and what it entails."""
        leaving = {i: asked for i, asked in self.asked.items() if i in one.leases}
        before = replace(one.study, now_s=self.now_s, leaving=leaving)
        state = StepState(before, one.cache)
        live = [lease for lease in one.leases.values() if lease.live]
        state.load(trials=one.trials.values(), leases=live)
        state.slots.update(one.slots)
        for arrival in arrivals:
            core.apply(state, arrival)
        slots_left = False
        if state.wants_placement and not state.study.state.ended:
            slots_left = self._place(one, state, len(live))
        if state.study.state.ended and not before.state.ended:
            core.finish(state, state.trials)
            slots_left = True
        self._write(one, state)
        self.check()
        for other in sorted(state.room.kicks):
            self.step(self.studies[other], Kick())
        if slots_left:
            for other_study in self.studies.values():
                if other_study is not one and other_study.study.state is StudyState.ACTIVE:
                    self.step(other_study, Kick())

    def _place(self, one: OneStudy, state: StepState, live: int) -> bool:
        state.live += live
        freed = list(state.free)
        request = Request.of(state.study.spec.resources)
        state.offer(slot for slot in self._free() if slot.free_milli >= request.milli)
        state.room.others = tuple(
            other.share()
            for other in self.studies.values()
            if other is not one and other.study.state is StudyState.ACTIVE
        )
        state.room.totals = Totals(gpu_milli=1000 * len(self._all), cpu_slots=0)
        sharing.join(state)
        state.load_queue(())
        assert placing.place(state, pass_over=False) is None
        if sharing.may_need_keeping(state):
            here = {(slot.worker_id, slot.index): slot for slot in state.free}
            devices = {(slot.worker_id, slot.index): slot for slot in self._free(every=True)} | here
            taken = {key: devices[key].less(devices[key].free_milli, 0) for key in state.changes.occupied}
            state.room.devices = tuple((devices | taken).values())
            state.room.running = (*self._running(), *sharing.just_granted(state))
            sharing.keep(state)
        if state.room.blocked is not None:
            assert placing.place(state) is None
        state.held = sum(trial.held for trial in state.trials.values())
        state.results = state.own_results()
        placing.settle(state)
        sharing.settle_standing(state)
        withheld = {(s.worker_id, s.index) for p in state.room.withheld for s in p.slots}
        return any(s in state.free and (s.worker_id, s.index) not in withheld for s in freed)

    def _write(self, one: OneStudy, state: StepState) -> None:
        one.study = state.study
        one.trials = {n: t for n, t in state.trials.items() if t.state is not State.TERMINATED}
        one.events += state.changes.events
        self.preempted += sum(event.kind == "trial_preempted" for event in state.changes.events)
        for lease in (*state.changes.updated.values(), *state.changes.granted.values()):
            if lease.live:
                one.leases[lease.id] = lease
                one.slots[lease.id] = state.slots[lease.id]
            else:
                one.leases.pop(lease.id, None)
                one.slots.pop(lease.id, None)
                self.asked.pop(lease.id, None)
        for order in state.orders:
            if isinstance(order, Assignment):
                self._schedule(one, order.lease)
        for lease_id, at_report in state.changes.asks.items():
            self.asked[lease_id] = Leaving(for_study_id=state.study.id, at_report=at_report, why="asked")

    def _report(self, one: OneStudy, lease: Lease) -> None:
        trial = one.trials[lease.number]
        asked = self.asked.get(lease.id)
        step = trial.milestone or one.study.spec.max_steps
        per_step_s = self._step_s(one.study.id, lease.number, lease.model)
        if asked is not None and asked.at_report:
            step = min(step, lease.step + 1)
        one.sequences[lease.id] += 1
        self.step(
            one,
            ReportArrived(
                lease_id=lease.id,
                number=lease.number,
                epoch=lease.epoch,
                sequence=one.sequences[lease.id],
                step=step,
                metrics={"loss": self._random.random()},
                checkpoint=Checkpoint(uri="c", step=step),
                train_time_s=per_step_s * (step - lease.step),
            ),
        )
        if lease.id in one.leases:
            self._schedule(one, one.leases[lease.id])

    def _schedule(self, one: OneStudy, lease: Lease) -> None:
        trial = one.trials[lease.number]
        steps = (trial.milestone or one.study.spec.max_steps) - lease.step
        per_step_s = self._step_s(one.study.id, lease.number, lease.model)
        self._count += 1
        heapq.heappush(self._heap, (self.now_s + steps * per_step_s, self._count, one.study.id, lease.id))

    # --- accounts ---------------------------------------------------------------------------------------

    def live(self) -> list[tuple[OneStudy, Lease]]:
        """Every live lease."""
        return [(one, lease) for one in self.studies.values() for lease in one.leases.values() if lease.live]

    def held(self) -> tuple[Counter[Place], Counter[Place]]:
        """Thousandths and bytes that leases hold of each slot."""
        milli: Counter[Place] = Counter()
        memory: Counter[Place] = Counter()
        for _, lease in self.live():
            for index in lease.slots:
                milli[lease.worker_id or 0, index] += lease.milli
                memory[lease.worker_id or 0, index] += lease.memory_bytes
        return milli, memory

    def check(self) -> None:
        """Nothing is given out twice, gangs are whole, and the studies' own accounts agree."""
        milli, memory = self.held()
        for key, slot in self._all.items():
            assert milli[key] <= 1000, f"slot {key} is given out {milli[key] / 1000} times"
            assert memory[key] <= slot.memory_bytes
        by_study: dict[int, int] = defaultdict(int)
        for one, lease in self.live():
            assert len(set(lease.slots)) == len(lease.slots) >= 1
            by_study[one.study.id] += lease.milli * len(lease.slots)
        for one in self.studies.values():
            assert one.study.standing.usage.gpu_milli == by_study[one.study.id]

    def _free(self, *, every: bool = False) -> list[Slot]:
        milli, memory = self.held()
        slots = [slot.less(milli[key], memory[key]) for key, slot in self._all.items()]
        return [slot for slot in slots if every or slot.free_milli]

    def _running(self) -> tuple[Running, ...]:
        found = []
        for one, lease in self.live():
            trial = one.trials[lease.number]
            kind = grant_kind(lease.model, len(lease.slots), lease.milli)
            per_step = step_s(kind, one.study.standing.speeds, trial.speeds)
            left = None if per_step is None else ((trial.milestone or 0) - lease.step) * per_step
            found.append(
                Running(
                    key=(one.study.id, lease.number),
                    lease_id=lease.id,
                    worker_id=lease.worker_id or 0,
                    slots=lease.slots,
                    milli=lease.milli,
                    priority=one.study.spec.priority,
                    leaves_in_s=left,
                    asked=lease.id in self.asked,
                )
            )
        return tuple(found)
