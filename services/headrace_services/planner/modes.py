"""The systems of the paper's Table 1, as this planner with some of its axes only.

An axis that a mode does not search stands at a fixed value: degree 1, one sequence per micro-batch, equal stages,
nothing recomputed. The cost model is the same for all, so a mode's plan is a plan of the full search too. (PipeDream's
weight versions, which cost memory, and Alpa's operator-level shardings are not modelled.)
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headrace_services.planner.degrees import Degrees
from headrace_services.planner.problem import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One row of Table 1: which axes are searched."""

    name: str
    data: bool = False
    tensor: bool = False
    pipeline: bool = False
    optimizer: bool = False
    micro_batch: bool = False
    stages: bool = False
    recompute: bool = False

    def allows(self, degrees: Degrees, batch: int) -> bool:
        """Whether a tuple lies on this mode's axes."""
        return (
            (self.data or degrees.d == 1)
            and (self.tensor or degrees.m == 1)
            and (self.pipeline or degrees.s == 1)
            and (self.optimizer or degrees.o == 1)
            and (self.micro_batch or degrees.micro_batch(batch) == 1)
        )

    @property
    def recomputation(self) -> Recompute:
        """Which layers it may recompute."""
        return Recompute.FREE if self.recompute else Recompute.NONE

    @property
    def equal_stages(self) -> bool:
        """Whether stages are split evenly rather than searched."""
        return not self.stages


_ROWS: Final = (
    Mode(
        name="h2o",
        data=True,
        tensor=True,
        pipeline=True,
        optimizer=True,
        micro_batch=True,
        stages=True,
        recompute=True,
    ),
    Mode(name="d-rec", data=True, tensor=True),
    Mode(name="dapple", data=True, pipeline=True, stages=True),
    Mode(name="pipedream", data=True, pipeline=True, stages=True),
    Mode(name="alpa", data=True, tensor=True, pipeline=True, stages=True),
    Mode(name="adapipe", pipeline=True, stages=True, recompute=True),
)
MODES: Final = MappingProxyType({mode.name: mode for mode in _ROWS})
"""H²O, Table 1, by name, the full search first."""
FULL: Final = MODES["h2o"]
