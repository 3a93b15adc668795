"""The gate: do activations move by the same amount at every width?"""

from headrace_torch.hydro.coordinate_check.check import coordinate_check, fixed_targets
from headrace_torch.hydro.coordinate_check.plot import draw_coordinate_check
from headrace_torch.hydro.coordinate_check.report import ActivationTrend, CoordinateReport

__all__ = [
    "ActivationTrend",
    "CoordinateReport",
    "coordinate_check",
    "draw_coordinate_check",
    "fixed_targets",
]
