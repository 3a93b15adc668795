"""Metrics as users have them, turned into plain floats."""

from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any


def to_floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Every metric as a float; None is dropped, 0-d tensors and NumPy scalars are taken.

    Raises `TypeError`, naming the metric, for anything that is not one number.
    """
    return {name: _to_float(name, value) for name, value in metrics.items() if value is not None}


def _to_float(name: str, value: Any) -> float:
    shape = getattr(value, "shape", None)
    if shape is not None and tuple(shape) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, Real | Decimal):
        try:
            return float(value)
        except OverflowError as error:
            raise TypeError(f"metric {name!r} is too large for a float; report its logarithm") from error
    if shape is not None and not isinstance(value, complex):
        remedy = "report one number, such as its .mean() or .item()"
        raise TypeError(f"metric {name!r} is a {type(value).__name__} of shape {tuple(shape)}; {remedy}")
    raise TypeError(f"metric {name!r} is {value!r} of type {type(value).__name__}; report a number")
