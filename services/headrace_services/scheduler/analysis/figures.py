"""The figures of a preview."""

from dataclasses import dataclass

from headrace_services.scheduler.core.records import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRung:
    """The expectation at one rung: trials recorded there, and the steps they took since the rung before."""

    bracket: int
    rung: int
    milestone: int
    trials: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSize:
    """How many trials have this size, including the baseline."""

    gpus: int
    gpu_milli: int
    cpus: int
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCompanion:
    """The expected course of a study that is created together with the previewed one."""

    role: str
    """`pilot`: it finds the scale, before the study. `target`: it trains the best configurations, after it."""
    trials: int
    steps: int
    wall_time_s: float | None
    slot_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The expected course of a study. Times are None if the seconds per step are unknown."""

    trials: int
    rungs: tuple[PreviewRung, ...]
    steps: int
    steps_run_all: int
    slots: int
    wall_time_s: float | None
    slot_time_s: float | None
    samples: tuple[Params, ...]
    sizes: tuple[PreviewSize, ...] = ()
    """Smallest first; empty if all trials have the same size."""
    bundle_groups: int = 0
    """The number of groups into which `fuse.apart` divides the trials; 0 without `fuse`."""
    companions: tuple[PreviewCompanion, ...] = ()
    """The other studies, in the order in which they run; their figures are not part of the study's own."""
