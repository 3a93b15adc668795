"""Student's distribution, for the intervals of slopes: torch has no quantile function for it."""

import math


def quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's distribution: a variable is below it with the given probability.

    Args:
        probability: from one half up, below 1.
        degrees: degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while within(high, degrees) < 2 * probability - 1:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if within(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return high


def within(value: float, degrees: int) -> float:
    """The probability of lying between -value and value (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(value, math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(2 + odd, degrees + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power - 1) / power
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
