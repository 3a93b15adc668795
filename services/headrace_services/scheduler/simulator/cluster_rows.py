"""The table of slots in memory, shared by all studies of a simulation, and the messages between them.

It is the counterpart of `store/placement`: which devices have room, who runs where, the status of other studies,
and who was asked to leave. A device's row is guarded here as in the database: a grant that it cannot hold is an
error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace
from sortedcontainers import SortedDict

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.changes import Changes
from headrace_services.scheduler.core.placement import Request, suits
from headrace_services.scheduler.core.placement.fit import has_room
from headrace_services.scheduler.core.placement.shares import Totals
from headrace_services.scheduler.core.records import Grant, Lease, Slot
from headrace_services.scheduler.core.study_status import Leaving
from headrace_services.scheduler.simulator.cluster import Machine

Key = tuple[int, int]
"""A device: its worker's id and its index."""


class OverCommitError(Exception):
    """A device was given out twice: a defect, as the database's own checks would report it."""


@dataclass(slots=True)
class _Device:
    """A row of the table of slots."""

    slot: Slot
    grant_id: str | None = None
    shared_milli: int = 0
    shared_memory: int = 0

    def row(self, *, placeable: bool = True) -> Slot:
        free = 0 if self.grant_id is not None else WHOLE - self.shared_milli
        return replace(self.slot, free_milli=free, used_memory_bytes=self.shared_memory, placeable=placeable)


class ClusterRows:
    """The slots of all machines, and the messages between studies."""

    def __init__(self, machines: Iterable[Machine], quotas: Mapping[str, int] | None = None) -> None:
        self.quotas = dict(quotas or {})
        """The most slots that the studies of a project may hold at once, by the project's name."""
        self.machines: dict[int, Machine] = {}
        self.up: set[int] = set()
        self.leaving: dict[str, tuple[int, Leaving]] = {}
        """Grants that were asked to end, each with its study's id."""
        self._incarnations: dict[int, int] = {}
        self._devices: dict[Key, _Device] = {}
        self._free: SortedDict[tuple[bool, str, int, int], Slot] = SortedDict()
        for machine in machines:
            self.add(machine)

    def add(self, machine: Machine) -> None:
        """Add a machine, which is available from now on."""
        self.machines[machine.id] = machine
        self.up.add(machine.id)
        self._incarnations[machine.id] = 1
        for slot in machine.devices():
            self._devices[slot.worker_id, slot.index] = _Device(slot)
            self._offer((slot.worker_id, slot.index))

    # --- what a cycle reads --------------------------------------------------------------------------

    def free_slots(self, request: Request, limit: int) -> list[Slot]:
        """Slots with room for a request; for a gang only those of workers that have enough of them."""
        limit = max(limit, request.slots)
        found: list[Slot] = []
        place = 0
        rows = self._free.values()
        while place < len(rows) and len(found) < limit:
            worker = rows[place].worker_id, rows[place].kind
            here = []
            while place < len(rows) and (rows[place].worker_id, rows[place].kind) == worker:
                if suits(rows[place], request) and has_room(rows[place], request):
                    here.append(rows[place])
                place += 1
            if len(here) >= request.slots:
                found += here
        return found[:limit]

    @property
    def anything_free(self) -> bool:
        """Whether any device has free capacity."""
        return bool(self._free)

    def free_milli(self) -> int:
        """The free capacity of all devices except ephemeral ones, in thousandths of a device."""
        return sum(slot.free_milli for slot in self._free.values() if not slot.owner)

    def devices(self, request: Request) -> tuple[Slot, ...]:
        """Every device that could serve a request, occupied or not; no ephemeral one."""
        rows = (device.row() for key, device in self._devices.items() if key[0] in self.up)
        return tuple(
            row
            for row in rows
            if not row.owner
            and all(row.labels.get(key) == value for key, value in request.labels.items())
            and (not request.gpu or row.kind == "GPU")
        )

    def totals(self) -> Totals:
        """The totals of the available machines."""
        up = [one for key, one in self._devices.items() if key[0] in self.up and not one.slot.owner]
        gpus = sum(device.slot.kind == "GPU" for device in up)
        return Totals(gpu_milli=gpus * WHOLE, cpu_slots=len(up) - gpus)

    def held(self, lease: Lease) -> tuple[Slot, ...]:
        """The slots of a lease, each with the part that the lease holds."""
        return self.of_grant(lease.grant) if lease.grant is not None else ()

    def of_grant(self, grant: Grant) -> tuple[Slot, ...]:
        """The slots of a grant, each with the part that the grant holds."""
        return tuple(
            replace(
                self._devices[part.worker_id, index].slot.part(grant.milli, grant.memory_bytes),
                placeable=part.worker_id in self.up,
            )
            for part in grant.parts
            for index in part.slots
        )

    # --- what a cycle writes -------------------------------------------------------------------------

    def write(self, changes: Changes) -> None:
        """Apply what a cycle gave back and gave out."""
        for key, grant_id in changes.vacated.items():
            if self._devices[key].grant_id == grant_id:
                self._devices[key].grant_id = None
                self._offer(key)
        for key, (milli, memory) in changes.shared.items():
            device = self._devices[key]
            device.shared_milli += milli
            device.shared_memory += memory
            if device.shared_milli > WHOLE or (device.shared_milli and device.grant_id is not None):
                raise OverCommitError(f"{key} is shared beyond what it has")
            self._offer(key)
        for key, grant_id in changes.occupied.items():
            device = self._devices[key]
            if device.grant_id is not None or device.shared_milli:
                raise OverCommitError(f"{key} is given to {grant_id} and is {device.grant_id}'s")
            device.grant_id = grant_id
            self._offer(key)

    def ask(self, grant_id: str, study_id: int, leaving: Leaving) -> None:
        """Ask the trials of a grant to leave; a request for the next report replaces one for the next rung."""
        before = self.leaving.get(grant_id)
        if before is None or (leaving.at_report and not before[1].at_report):
            self.leaving[grant_id] = study_id, leaving

    def withdraw_asks(self, for_study_id: int) -> None:
        """Withdraw what a study asked of others' trials."""
        self.leaving = {
            grant_id: said for grant_id, said in self.leaving.items() if said[1].for_study_id != for_study_id
        }

    # --- machines ------------------------------------------------------------------------------------

    def fail(self, machine_id: int) -> None:
        """A machine has failed: its free capacity is unavailable, and stays so when more is given back."""
        self.up.discard(machine_id)
        for index in range(self.machines[machine_id].slots):
            self._offer((machine_id, index))

    def repair(self, machine_id: int) -> None:
        """The machine is available again, empty, in a new incarnation."""
        self.up.add(machine_id)
        self._incarnations[machine_id] += 1
        for slot in self.machines[machine_id].devices(incarnation=self._incarnations[machine_id]):
            self._devices[slot.worker_id, slot.index].slot = slot
            self._offer((slot.worker_id, slot.index))

    def _offer(self, key: Key) -> None:
        """Update one device in the list of free slots."""
        row = self._devices[key].row()
        place = (bool(row.owner), row.kind, row.worker_id, row.index)
        if row.free_milli and row.worker_id in self.up:
            self._free[place] = row
        else:
            self._free.pop(place, None)
