"""Numbers that JSON cannot hold, NaN and the infinities, spelled as in protobuf's JSON mapping."""

import math
from typing import Any

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def finite_json(metrics: dict[str, float]) -> dict[str, float | str]:
    """Return metrics as JSON can hold them."""
    return {name: n if math.isfinite(n) else json_number(n) for name, n in metrics.items()}


def metrics_of_json(value: dict[str, Any]) -> dict[str, float]:
    """Return metrics as they were before `finite_json`."""
    return {name: _NON_FINITE[n] if isinstance(n, str) else float(n) for name, n in value.items()}


def json_number(number: float) -> float | str:
    """Return `number` as protobuf's JSON mapping writes it."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number
