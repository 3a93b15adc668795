"""Which report of a trial is its best: the scheduler and the trial's own process decide it by these words alone."""

from math import inf, isfinite, isnan


def reached(value: float | None, target: float, *, maximize: bool) -> bool:
    """Whether a value is finite, and the target's or better."""
    if value is None or not isfinite(value):
        return False
    return value >= target if maximize else value <= target


def excess(value: float | None, *, at_most: float | None, at_least: float | None) -> float:
    """By how much a value misses its one bound: at most 0 where it is met; infinite for a missing value or NaN."""
    if value is None or isnan(value):
        return inf
    return value - at_most if at_most is not None else (at_least or 0.0) - value


def improves(value: float | None, than: float | None, *, maximize: bool) -> bool:
    """Whether a value is finite and better than the best one before; an equal one is not."""
    if value is None or not isfinite(value):
        return False
    if than is None:
        return True
    return value > than if maximize else value < than
