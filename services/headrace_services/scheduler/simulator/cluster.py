"""The virtual machines: workers with slots, of device types that differ in speed.

On the command line they are written as `NAME:WORKERS[xSLOTS][~ISLAND][@SPEED]`, separated by commas.
`h100:2x8@2.5,a100:4x8~4` is two machines of eight H100, each 2.5 times as fast as the curves' own device, and four
of eight A100, in groups of four connected by NVLink, with the groups on different NUMA nodes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.spec import StudySpec
from headrace_services.scheduler.core.placement import requests_of, sizes_differ
from headrace_services.scheduler.core.placement.joints import Link
from headrace_services.scheduler.core.records import Slot

GIB = 1 << 30
CORES = 64.0
"""Cores of a slot; simulated trials compute on its GPU."""
_TYPE = re.compile(
    r"(?P<name>[A-Za-z][\w.-]*):(?P<workers>\d+)(x(?P<slots>\d+))?(~(?P<island>\d+))?"
    r"(@(?P<speed>\d+(\.\d*)?|\.\d+))?",
    re.ASCII,
)
MAX_SLOTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One worker. `speed` divides the times of the curves."""

    id: int
    name: str
    model: str
    slots: int
    speed: float = 1.0
    island: int = 0
    """The size of the groups of slots that NVLink connects; 0 if the interconnect is unknown."""
    kind: str = "GPU"
    memory_bytes: int = 80 * GIB
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """The large job whose stages its slots are, only for trials in its bubbles; empty for an ordinary machine."""
    duty: float = 1.0
    """For a machine of a large job: the share of the time that trials get."""

    def devices(self, *, placeable: bool = True, incarnation: int = 1) -> tuple[Slot, ...]:
        """The machine's slots, as rows of the scheduler's table."""
        return tuple(
            Slot(
                worker_id=self.id,
                index=index,
                kind=self.kind,
                memory_bytes=self.memory_bytes,
                labels=dict(self.labels),
                model=self.model,
                cores=CORES,
                worker_name=self.name,
                incarnation=str(incarnation),
                log_dir="",
                placeable=placeable,
                links=self._links(index),
                owner=self.owner,
                stage=index if self.owner else 0,
                duty=self.duty,
            )
            for index in range(self.slots)
        )

    def _links(self, index: int) -> tuple[int, ...]:
        if not self.island:
            return ()
        joined = (
            Link.NVLINK if index // self.island == other // self.island else Link.MACHINE
            for other in range(self.slots)
        )
        return tuple(int(Link.UNKNOWN if other == index else link) for other, link in enumerate(joined))


def machines(workers: int, *, slots: int = 1, speed: float = 1.0, model: str = "") -> tuple[Machine, ...]:
    """This many machines of one type."""
    return tuple(
        Machine(id=number, name=f"{model or 'worker'}-{number}", model=model, slots=slots, speed=speed)
        for number in range(1, workers + 1)
    )


def most_slots(spec: StudySpec) -> int:
    """How many slots a trial takes at most."""
    return max(request.slots for request in requests_of(spec))


def machines_for(spec: StudySpec, trials: int) -> tuple[Machine, ...]:
    """Machines on which this many trials of a study run at once, whatever their requests: one machine for each
    trial.

    If trials differ in size, by their configurations or as they advance, `trials` counts slots: the machines hold
    the largest trial, and have about this many slots in all.
    """
    asked, most = spec.resources, most_slots(spec)
    if sizes_differ(spec):
        trials = max(1, trials // most)
    found = machines(trials, slots=most, model=asked.gpu_types[0] if asked.gpu_types else "")
    memory = max(80 * GIB, asked.gpu_memory_bytes)
    return tuple(replace(machine, memory_bytes=memory, labels=asked.labels) for machine in found)


def parse_types(text: str) -> tuple[Machine, ...]:
    """The machines that `--types` names. Raises a ValueError that says what is wrong, and how to write it."""
    found: list[Machine] = []
    for part in text.split(","):
        match = _TYPE.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                f"'{part.strip()}' is not of the form NAME:WORKERS[xSLOTS][~ISLAND][@SPEED], as in a100:4x8~4@1.5"
            )
        speed = float(match["speed"] or 1.0)
        workers, slots = int(match["workers"]), int(match["slots"] or 1)
        if not speed or not workers or not slots or match["island"] == "0":
            raise ValueError(f"'{part.strip()}' has a zero; workers, slots, island and speed are above 0")
        if workers * slots > MAX_SLOTS:
            raise ValueError(f"'{part.strip()}' has more than {MAX_SLOTS} slots")
        found += [
            Machine(
                id=len(found) + place + 1,
                name=f"{match['name']}-{place + 1}",
                model=match["name"],
                slots=slots,
                speed=speed,
                island=int(match["island"] or 0),
            )
            for place in range(workers)
        ]
    return tuple(found)
