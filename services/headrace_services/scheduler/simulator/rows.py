"""The scheduler's tables in memory: what the database would hold, for the production step to work on.

`ClusterRows` is the table of slots, shared by all studies of a simulation; `StudyRows` the rows of one study. A step
gets copies and hands back what changed, exactly as over Postgres, where `store/step_reads` and `store/step_writes`
do the same. Rows that no later step can ask for (leases that are over, stored reports) are not kept, so memory
grows with the number of trials alone.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from sortedcontainers import SortedDict, SortedList

from headrace.spec import StudySpec
from headrace_services.scheduler.lifecycle import State, StudyState
from headrace_services.scheduler.records import Event, Lease, Slot, Study, Trial
from headrace_services.scheduler.simulator.cluster import Machine
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.state import StepState

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""When every simulated study is created."""


class ClusterRows:
    """The slots of all machines."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self.machines = {machine.id: machine for machine in machines}
        self.free: SortedDict[tuple[str, int, int], Slot] = SortedDict()
        self.up = set(self.machines)
        self._incarnations = dict.fromkeys(self.machines, 1)
        for machine in self.machines.values():
            self._offer(machine.devices())

    def fail(self, machine_id: int) -> None:
        """A machine is gone: its free slots cannot be used, and those in use are not given out again."""
        self.up.discard(machine_id)
        for slot in self.machines[machine_id].devices():
            self.free.pop(_key(slot), None)

    def repair(self, machine_id: int) -> None:
        """The machine is back, empty, in a new incarnation."""
        self.up.add(machine_id)
        self._incarnations[machine_id] += 1
        machine = self.machines[machine_id]
        self._offer(machine.devices(incarnation=self._incarnations[machine_id]))

    def take(self, slots: Iterable[Slot]) -> None:
        """Slots were given to a lease."""
        for slot in slots:
            del self.free[_key(slot)]

    def give(self, slots: Iterable[Slot]) -> None:
        """A lease on slots is over; those of a machine that is gone stay away."""
        self._offer(slot for slot in slots if slot.worker_id in self.up)

    def current(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """The rows of slots as they are now: not placeable where the machine is gone."""
        if all(slot.worker_id in self.up for slot in slots):
            return slots
        machine = self.machines[slots[0].worker_id]
        gone = machine.devices(placeable=False)
        return tuple(gone[slot.index] for slot in slots)

    def _offer(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.free[_key(slot)] = slot


class StudyRows:
    """One study: its row, its trials, its live leases, and the policy with its results folded in."""

    def __init__(self, spec: StudySpec, cache: StudyCache, *, name: str, number: int = 1) -> None:
        self.study = Study(
            id=number,
            uid=f"sim{number}",
            name=name,
            spec=spec,
            state=StudyState.ACTIVE,
            detail="",
            cursor=0,
            next_number=0,
            sampled=0,
            reports=0,
            metric_seen=False,
            early_failures=0,
            create_time=EPOCH,
            end_time=None,
        )
        self.cache = cache
        self.trials: dict[int, Trial] = {}
        self.leases: dict[str, Lease] = {}
        self.slots: dict[str, tuple[Slot, ...]] = {}
        self.events: list[Event] | None = None
        """The event log, where somebody asked for it."""
        self._runnable: SortedList[tuple[bool, int]] = SortedList()

    def runnable(self, limit: int) -> list[Trial]:
        """Trials that should be on a worker and are not: interrupted ones first, then by number."""
        return [self.trials[number] for _, number in self._runnable[:limit]]

    @property
    def pending(self) -> bool:
        """Whether a trial should be on a worker and is not."""
        return bool(self._runnable)

    def unfinished(self) -> list[Trial]:
        """Every trial that is not over."""
        return [trial for trial in self.trials.values() if trial.state is not State.TERMINATED]

    def write(self, state: StepState, cluster: ClusterRows) -> None:
        """Take over what a step changed."""
        changes = state.changes
        numbers = {trial.number for trial in changes.created}
        numbers.update(change.after.number for change in changes.trials)
        for number in numbers:
            before, after = self.trials.get(number), state.trials[number]
            if before is not None and before.runnable:
                self._runnable.remove((before.epoch == 0, number))
            if after.runnable:
                self._runnable.add((after.epoch == 0, number))
            self.trials[number] = after
        # First what was given back, then what was taken: a slot may be both in one step.
        for lease in changes.updated.values():
            if lease.live:
                self.leases[lease.id] = lease
            elif self.leases.pop(lease.id, None) is not None:
                cluster.give(self.slots.pop(lease.id))
        for lease in changes.granted.values():
            if lease.live:
                self.leases[lease.id] = lease
                self.slots[lease.id] = state.slots[lease.id]
                cluster.take(self.slots[lease.id])
        if self.events is not None:
            self.events.extend(changes.events)
        self.study = state.study


def _key(slot: Slot) -> tuple[str, int, int]:
    return slot.kind, slot.worker_id, slot.index
