"""What a probe found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_torch.hydro.fuse.obstacles import EngineName


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What the probe found.

    Attributes:
        engine: what the group runs on.
        reason: why, in one sentence.
        gaps: the reason, for engines that cannot run this model or are not equal.
        error: the largest relative difference from torch.optim in float64, per engine that ran.
        speedup: separate members' time over the engine's, per engine that was timed.
        bit_stable: per engine that was tried, whether drop and repack change no bit of the remaining members.
    """

    engine: EngineName
    reason: str
    gaps: Mapping[str, str] = field(default_factory=dict)
    error: Mapping[str, float] = field(default_factory=dict)
    speedup: Mapping[str, float] = field(default_factory=dict)
    bit_stable: Mapping[str, bool] = field(default_factory=dict)
