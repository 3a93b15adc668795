"""Converts users' metrics to plain floats by name."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any


class MetricError(TypeError):
    """A metric that cannot be reported. `problem` says why, `remedy` what to report instead."""

    def __init__(self, name: str, value: object, problem: str, remedy: str) -> None:
        super().__init__(f"metric {name!r} {problem}; {remedy}" if name else f"{problem}; {remedy}")
        self.name = name
        self.value = value
        self.problem = problem
        self.remedy = remedy


def to_floats(metrics: object, named: Mapping[str, Any]) -> dict[str, float]:
    """The metrics in a dictionary (or None) and those given by name, each as a float.

    A metric that is None is left out; 0-d tensors and NumPy scalars are accepted. Raises `MetricError`, a
    `TypeError` that names the metric, for anything that is not one number, and for a name that is not a string
    or is given twice.
    """
    if metrics is None:
        metrics = {}
    if not isinstance(metrics, Mapping):
        remedy = 'name it, as in report(loss=...) or report({"val/loss": ...})'
        raise MetricError("", metrics, f"report() got {_short(metrics)} without a name", remedy)
    for name in metrics:
        if not isinstance(name, str) or not name:
            raise MetricError(
                "",
                name,
                f"metric names must be non-empty strings, not {_short(name)}",
                "name each metric, such as 'val/loss'",
            )
        if name in named:
            raise MetricError(
                name, metrics[name], "is given twice, in the dictionary and by name", "report it once"
            )
    return {name: _to_float(name, value) for name, value in {**metrics, **named}.items() if value is not None}


def metrics_of(result: object, objectives: Sequence[str]) -> dict[str, float]:
    """The metrics in a value that a function returned or yielded: a mapping by name, a number that is the
    objective, or one number per objective. Raises `MetricError` for anything else.
    """
    if isinstance(result, Mapping):
        return to_floats(result, {})
    named = ", ".join(f"'{name}'" for name in objectives)
    remedy = f"give a number for {named}, a mapping of metrics, or report with t.report(...)"
    if result is None:
        raise MetricError("", result, "the function gave no result", remedy)
    if isinstance(plain_scalar(result), bool):
        raise MetricError(
            "", result, f"the function gave {plain_scalar(result)}, which is not a number", remedy
        )
    if len(objectives) == 1:
        return to_floats({objectives[0]: result}, {})
    if not isinstance(result, tuple | list) or len(result) != len(objectives):
        problem = f"the function gave {_short(result)} for {len(objectives)} objectives"
        raise MetricError(
            "", result, problem, f"give a number for each of {named}, in this order, or a mapping"
        )
    return to_floats(dict(zip(objectives, result, strict=True)), {})


def _to_float(name: str, value: Any) -> float:
    shape = getattr(value, "shape", None)
    value = plain_scalar(value)
    if isinstance(value, Real | Decimal):
        try:
            return float(value)
        except OverflowError:
            raise MetricError(name, value, "is too large for a float", "report its logarithm") from None
    if isinstance(value, Mapping):
        remedy = f"give each of its values a name, such as '{name}/...'"
        raise MetricError(name, value, f"is a {type(value).__name__}", remedy)
    if shape is not None and not isinstance(value, complex):
        problem = f"is a {type(value).__name__} of shape {tuple(shape)}"
        raise MetricError(name, value, problem, "report one number, such as its .mean() or .item()")
    raise MetricError(name, value, f"is {_short(value)} of type {type(value).__name__}", "report a number")


def plain_scalar(value: Any) -> Any:
    """The value of a 0-d tensor or a NumPy scalar; anything else unchanged."""
    shape = getattr(value, "shape", None)
    return value.item() if shape is not None and tuple(shape) == () and hasattr(value, "item") else value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
