"""What a preview says."""

from dataclasses import dataclass

from headrace_services.scheduler.core.records import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRung:
    """What is expected at one rung: trials recorded there, and the steps they spent since the rung before."""

    bracket: int
    rung: int
    milestone: int
    trials: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewSize:
    """How many trials take so much, the baseline counted."""

    gpus: int
    gpu_milli: int
    cpus: int
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewCompanion:
    """What a study is expected to do that is created with the one previewed."""

    role: str
    """`pilot`: it finds the scale, before. `target`: it trains the best configurations, behind."""
    trials: int
    steps: int
    wall_time_s: float | None
    slot_time_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a study is expected to do. Times are None where the seconds per step are unknown."""

    trials: int
    rungs: tuple[PreviewRung, ...]
    steps: int
    steps_run_all: int
    slots: int
    wall_time_s: float | None
    slot_time_s: float | None
    samples: tuple[Params, ...]
    sizes: tuple[PreviewSize, ...] = ()
    """The smallest first; empty where all trials take the same."""
    bundle_groups: int = 0
    """Into how many groups `fuse.apart` parts the trials; 0 without `fuse`."""
    companions: tuple[PreviewCompanion, ...] = ()
    """The other studies, in the order in which they run; their figures are in none of the others."""
