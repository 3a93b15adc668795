"""Hydro: tune a small copy of a model, many copies at once, and carry the hyperparameters over.

    shrink              a narrower (and shallower) model whose best hyperparameters are those of the user's model
    parametrize         the rule table behind it: what each parameter's settings are multiplied by
    coordinate_check    the gate: do activations move by the same amount at every width?
    transfer            the best of the small model on the large one, with the regret; what carries over and what does not

Hu et al. 2023, "Hydro: Surrogate-Based Hyperparameter Tuning Service in Datacenters" (OSDI); Yang et al. 2022, "Tensor
Programs V"; Dey et al. 2025, "Don't be lazy: CompleteP enables compute-efficient deep transformers".
"""

from headrace_torch.hydro.coordinate_check.check import coordinate_check
from headrace_torch.hydro.coordinate_check.report import CoordinateReport
from headrace_torch.hydro.errors import (
    CoordinateCheckError,
    HydroError,
    ParametrizationError,
    ShrinkError,
    TransferError,
)
from headrace_torch.hydro.parametrize.hooks import Query, Readout
from headrace_torch.hydro.parametrize.kinds import Kind
from headrace_torch.hydro.parametrize.parametrization import Multipliers, Parametrization, parametrize
from headrace_torch.hydro.shrink.entry import shrink
from headrace_torch.hydro.shrink.surrogate import Surrogate

__all__ = [
    "CoordinateCheckError",
    "CoordinateReport",
    "HydroError",
    "Kind",
    "Multipliers",
    "ParametrizationError",
    "Parametrization",
    "Query",
    "Readout",
    "ShrinkError",
    "Surrogate",
    "TransferError",
    "coordinate_check",
    "parametrize",
    "shrink",
]
