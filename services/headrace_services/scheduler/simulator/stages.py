"""A large pipeline job next to the virtual machines: its stages, in whose idle windows trials may work.

On the command line it is written as `STAGES[xREPLICAS]/MICRO_BATCHES@HARVEST`. `4x8/16@0.5` is a job of four
stages in eight replicas, on 32 devices, with 16 micro-batches per step, and trials use half of its idle time.

With 1F1B each stage is idle for (s-1)/(m+s-1) of its step (Narayanan et al. 2021, section 2.2.1), however long a
forward and a backward pass take. A trial in a stage's bubbles is as fast as on its own device, for the share of
the time that it harvests. The simulation ignores individual windows, the end of the job, and differences in memory
between its stages.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.spec import StudySpec
from headrace_services.scheduler.simulator.cluster import MAX_SLOTS, Machine, machines_for
from headrace_services.scheduler.simulator.variants import Variant

_STAGES = re.compile(
    r"(?P<stages>\d+)(x(?P<replicas>\d+))?/(?P<micro_batches>\d+)@(?P<harvest>\d+(\.\d*)?|\.\d+)", re.ASCII
)
WITHOUT = ", no bubbles"
"""The end of the label of a variant that uses only ordinary slots."""
FORM = "STAGES[xREPLICAS]/MICRO_BATCHES@HARVEST, as in 4x8/16@0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A pipeline job. Raises a ValueError that says what is wrong with it."""

    stages: int
    micro_batches: int
    harvest: float
    """The share of the job's idle time that trials use."""
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.stages < 2 or not self.replicas:
            raise ValueError(
                f"{self.stages} stages in {self.replicas} replicas: give at least two stages, which wait for each "
                "other, and one replica"
            )
        if self.micro_batches < self.stages:
            raise ValueError(
                f"{self.micro_batches} micro-batches do not fill {self.stages} stages: give at least as many"
            )
        if not 0.0 < self.harvest <= 1.0:
            raise ValueError(
                f"a harvest of {self.harvest:g}: give a share of the idle time, above 0 and up to 1"
            )
        if self.devices > MAX_SLOTS:
            raise ValueError(f"{self.devices} devices: a simulation takes at most {MAX_SLOTS}")

    @property
    def devices(self) -> int:
        """The number of devices that the job trains on."""
        return self.stages * self.replicas

    @property
    def idle(self) -> float:
        """The share of a step in which each stage is idle."""
        return (self.stages - 1) / (self.micro_batches + self.stages - 1)

    @property
    def duty(self) -> float:
        """The share of a device's time that trials get."""
        return self.idle * self.harvest

    def machines(
        self, spec: StudySpec, *, first: int, memory_bytes: int | None = None
    ) -> tuple[Machine, ...]:
        """A machine for each replica, numbered from `first`.

        Args:
            spec: of the study; its trials fit the devices' kind, type and labels.
            memory_bytes: what the job leaves on each device. Default: what a trial, or a full bundle, asks for.
        """
        [like] = machines_for(spec, 1)
        return tuple(
            replace(
                like,
                id=first + number,
                name=f"replica-{number + 1}",
                slots=self.stages,
                kind="GPU" if spec.resources.on_gpu else "CPU",
                memory_bytes=like.memory_bytes if memory_bytes is None else memory_bytes,
                owner="job",
                duty=self.duty,
            )
            for number in range(self.replicas)
        )


def parse_stages(text: str) -> Stages:
    """The job that `--stages` describes. Raises a ValueError that says what is wrong, and how to write it."""
    match = _STAGES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"'{text.strip()}' is not of the form {FORM}")
    return Stages(
        stages=int(match["stages"]),
        replicas=int(match["replicas"] or 1),
        micro_batches=int(match["micro_batches"]),
        harvest=float(match["harvest"]),
    )


def with_and_without(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Each variant on ordinary slots only, and then in bubbles as well."""
    return tuple(
        one
        for variant in variants
        for one in (
            Variant(
                label=f"{variant.label}{WITHOUT}", spec=variant.spec.model_copy(update={"bubbles": False})
            ),
            variant,
        )
    )
