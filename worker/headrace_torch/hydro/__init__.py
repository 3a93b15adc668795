"""Hydro: tune a small copy of a model, many copies at once, and carry the hyperparameters over.

    shrink              a narrower (and shallower) model whose best hyperparameters are those of the user's model
    parametrize         the rule table behind it: what each parameter's settings are multiplied by
    coordinate_check    the gate: do activations move by the same amount at every width?
    fuse                many members of one model, each with its own hyperparameters, trained as one
    optimizer           the optimizer that trains a model, small copy or not
    transfer            the best of the small model on the large one, with the regret; what carries over

Hu et al. 2023, "Hydro: Surrogate-Based Hyperparameter Tuning Service in Datacenters" (OSDI); Yang et al. 2022,
"Tensor Programs V"; Dey et al. 2025, "Don't be lazy: CompleteP enables compute-efficient deep transformers".
"""

from headrace_torch.agreement import Agreement
from headrace_torch.hydro.coordinate_check.check import coordinate_check
from headrace_torch.hydro.coordinate_check.plot import draw_coordinate_check
from headrace_torch.hydro.coordinate_check.report import CoordinateReport, Outcome
from headrace_torch.hydro.errors import (
    CoordinateCheckError,
    HydroError,
    ParametrizationError,
    ShrinkError,
    TransferError,
)
from headrace_torch.hydro.fuse import (
    CapacityPlan,
    Cosine,
    EpochBatches,
    FirstStep,
    FuseError,
    FusionGapError,
    Group,
    LossScale,
    LossShapeError,
    Member,
    MemberError,
    MemoryBudgetError,
    OneCycle,
    OutOfMemoryError,
    PerMember,
    PoolError,
    ProbeReport,
    Schedule,
    Setting,
    StaticShapeError,
    StepDecay,
    WarmUp,
    fuse,
    plan_capacity,
)
from headrace_torch.hydro.gate import UngatedWarning
from headrace_torch.hydro.parametrize.hooks import Query, Readout
from headrace_torch.hydro.parametrize.kinds import Kind
from headrace_torch.hydro.parametrize.parametrization import Multipliers, Parametrization, parametrize
from headrace_torch.hydro.shrink.entry import shrink
from headrace_torch.hydro.shrink.surrogate import Surrogate
from headrace_torch.hydro.study import has_optimizer, optimizer, surrogate_of
from headrace_torch.hydro.transfer.agreement import agreement
from headrace_torch.hydro.transfer.run import transfer
from headrace_torch.hydro.transfer.scale import ScaleReport, choose_scale
from headrace_torch.hydro.transfer.top_k import TopK, TransferReport, Trial
from headrace_torch.hydro.transfer.which import SearchSpace, check_transferable, search_space

__all__ = [
    "Agreement",
    "CapacityPlan",
    "CoordinateCheckError",
    "CoordinateReport",
    "Cosine",
    "EpochBatches",
    "FirstStep",
    "FuseError",
    "FusionGapError",
    "Group",
    "HydroError",
    "Kind",
    "LossScale",
    "LossShapeError",
    "Member",
    "MemberError",
    "MemoryBudgetError",
    "Multipliers",
    "OneCycle",
    "OutOfMemoryError",
    "Outcome",
    "Parametrization",
    "ParametrizationError",
    "PerMember",
    "PoolError",
    "ProbeReport",
    "Query",
    "Readout",
    "ScaleReport",
    "Schedule",
    "SearchSpace",
    "Setting",
    "ShrinkError",
    "StaticShapeError",
    "StepDecay",
    "Surrogate",
    "TopK",
    "TransferError",
    "TransferReport",
    "Trial",
    "UngatedWarning",
    "WarmUp",
    "agreement",
    "check_transferable",
    "choose_scale",
    "coordinate_check",
    "draw_coordinate_check",
    "fuse",
    "has_optimizer",
    "optimizer",
    "parametrize",
    "plan_capacity",
    "search_space",
    "shrink",
    "surrogate_of",
    "transfer",
]
