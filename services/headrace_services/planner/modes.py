"""The systems of the paper's Table 1 and its two baselines, as this planner restricted to some of its axes.

An axis that a mode does not search has a fixed value: degree 1, one sequence per micro-batch, equal stages,
nothing recomputed. The cost model is the same for all, so a mode's plan is a plan of the full search too.
PipeDream keeps a version of its weights for every micro-batch in flight, which costs memory and distinguishes it
from DAPPLE. That it does not wait between iterations is not modelled, and neither are Alpa's operator-level
shardings. AdaPipe has no data axis, but assigns devices beyond one per layer to data ranks, as its authors' runs
do.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headrace_services.planner.costing import Request
from headrace_services.planner.degrees import Degrees, least_data
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
    everything: bool = False
    """Whether all layers are recomputed, if none are chosen."""
    versions: bool = False
    """Whether every micro-batch in flight has its own version of the weights."""
    greedy: bool = False
    """Whether axes are tuned one after another instead of searched together."""

    def allows(self, degrees: Degrees, request: Request) -> bool:
        """Whether a tuple is on this mode's axes."""
        rest = 1
        if self.pipeline and not self.tensor:
            rest = least_data(request.cluster.devices, request.batch, len(request.model.layers))
        return (
            (self.data or degrees.d == rest)
            and (self.tensor or degrees.m == 1)
            and (self.pipeline or degrees.s == 1)
            and (self.optimizer or degrees.o == 1)
            and (self.micro_batch or degrees.micro_batch(request.batch) == 1)
        )

    @property
    def recomputation(self) -> Recompute:
        """Which layers it may recompute."""
        if self.everything:
            return Recompute.ALL
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
    Mode(name="pipedream", data=True, pipeline=True, stages=True, versions=True),
    Mode(name="alpa", data=True, tensor=True, pipeline=True, stages=True),
    Mode(name="adapipe", pipeline=True, stages=True, recompute=True),
    Mode(
        name="expert",
        data=True,
        tensor=True,
        pipeline=True,
        optimizer=True,
        micro_batch=True,
        everything=True,
        greedy=True,
    ),
)
MODES: Final = MappingProxyType({mode.name: mode for mode in _ROWS})
"""H²O, Table 1 and its Baseline B, by name, the full search first."""
FULL: Final = MODES["h2o"]
