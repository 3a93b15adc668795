"""What a few measured plans of one model reveal about the cluster's constants.

A shortlist is a handful of plans, and there are more constants than that. So each free constant is held to its
previous value, in logarithms, and moves only as far as the measurements pull it: minimise Σ(log predicted/measured
÷ SPREAD)² + Σ(log constant/before ÷ HOLD)². Plans are priced as they are, with their stages and recomputed layers,
and not searched again. For many runs of many models there is `calibration`.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from headrace_services.planner.calibration import RANGES
from headrace_services.planner.cluster import Efficiencies
from headrace_services.planner.emit.lowering import priced
from headrace_services.planner.plan import Plan

SPREAD: Final = 0.02
"""The error of a measured iteration itself, in logarithms."""
HOLD: Final = 0.5
"""The error of a constant before anything was measured, in logarithms."""
COMPUTE: Final = ("gemm", "attention", "memory", "link")
"""What a profile has measured already."""
AROUND: Final = ("gradients", "transfer", "iteration_s", "optimizer")


def learned(plans: Sequence[Plan], seconds: Sequence[float]) -> Efficiencies:
    """The constants of the plans' cluster after these measurements, one per plan. All plans must be of one
    request."""
    request = plans[0].request
    before = request.cluster.device.efficiencies
    names = AROUND if request.model.profiled else (*COMPUTE, *AROUND)
    start = [max(getattr(before, name), RANGES[name].low) for name in names]

    def constants(moved: NDArray[np.float64]) -> Efficiencies:
        found = {name: value * exp(by) for name, value, by in zip(names, start, moved.tolist(), strict=True)}
        return replace(before, **found)

    def loss(moved: NDArray[np.float64]) -> NDArray[np.float64]:
        made = constants(moved)
        misses = [
            log(predicted_s(plan, made) / measured) / SPREAD
            for plan, measured in zip(plans, seconds, strict=True)
        ]
        return np.array([*misses, *(moved / HOLD)])

    low = [log(RANGES[name].low / value) - 1e-9 for name, value in zip(names, start, strict=True)]
    high = [max(log(RANGES[name].high / value), 0.0) + 1e-9 for name, value in zip(names, start, strict=True)]
    fitted = least_squares(loss, np.zeros(len(names)), bounds=(low, high), max_nfev=40)
    return constants(fitted.x)


def predicted_s(plan: Plan, constants: Efficiencies) -> float:
    """A plan's time with other constants."""
    request = replace(plan.request, cluster=plan.request.cluster.with_efficiencies(constants))
    return priced(plan, request=request).simulated_s
