"""Which multiplier each parameter gets: one rule table, applied by parameter name."""

from headrace_torch.hydro.parametrize.kinds import Growth, Kind, growth_of
from headrace_torch.hydro.parametrize.parametrization import (
    Multipliers,
    Parametrization,
    identity,
    parametrize,
)
from headrace_torch.hydro.parametrize.rules import RULES, Power, Rule

__all__ = [
    "RULES",
    "Growth",
    "Kind",
    "Multipliers",
    "Parametrization",
    "Power",
    "Rule",
    "growth_of",
    "identity",
    "parametrize",
]
