"""Which report of a trial is its best. The scheduler and the trial's process both use these functions to decide."""

from math import inf, isfinite, isnan


def reached(value: float | None, target: float, *, maximize: bool) -> bool:
    """Whether a value is finite and at least as good as the target."""
    if value is None or not isfinite(value):
        return False
    return value >= target if maximize else value <= target


def excess(value: float | None, *, at_most: float | None, at_least: float | None) -> float:
    """How far a value is beyond its one bound: at most 0 if it meets the bound, infinite for a missing value
    or NaN.
    """
    if value is None or isnan(value):
        return inf
    return value - at_most if at_most is not None else (at_least or 0.0) - value


def improves(value: float | None, than: float | None, *, maximize: bool) -> bool:
    """Whether a value is finite and better than the previous best. An equal value is not better."""
    if value is None or not isfinite(value):
        return False
    if than is None:
        return True
    return value > than if maximize else value < than
