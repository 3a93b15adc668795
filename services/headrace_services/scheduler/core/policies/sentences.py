"""The wording of decisions: what was compared first, then the trial's place. All policies use the same wording.

A rule that stops trials also says what happens to this one; otherwise the decision says so.
"""

import math

from headrace_services.scheduler.core.policies.protocol import RungResult

TOO_FEW = "too few results at this rung to promote anyone yet"


def place_sentence(result: RungResult, rank: int, results: int) -> str:
    """Rank and rung: `rank 5 of 14 at the rung at step 3`."""
    return f"rank {rank} of {results} at the rung at step {result.milestone}"


def standing(result: RungResult, rank: int, results: int, kept: int) -> str:
    """Rank, rung and how many continue: `rank 5 of 14 at the rung at step 3, where the best 4 are promoted`."""
    place = place_sentence(result, rank, results)
    match kept:
        case 0:
            return place
        case 1:
            return f"{place}, where the best one is promoted"
        case _:
            return f"{place}, where the best {kept} are promoted"


def compare_sentence(value: float | None, cutoff: float | None, rank: int, kept: int) -> str:
    """The value compared with the last one that continues."""
    if not kept:
        return TOO_FEW
    if value is None or cutoff is None:
        shown = "no value" if value is None else f"value {figure(value)}"
        return f"{shown}, and fewer results have a finite value than can be promoted"
    first, second = figures(value, cutoff)
    if value == cutoff:
        if rank <= kept:
            return f"value {first} meets the cutoff"
        return f"value {first} equals the cutoff, but arrived later"
    word = "better" if rank <= kept else "worse"
    return f"value {first} is {word} than the cutoff {second}"


def no_value_sentence(result: RungResult) -> str:
    """Why a result cannot be ranked."""
    if result.value is None:
        return "the metric was missing"
    return f"the value is {'NaN' if math.isnan(result.value) else result.value}, not a finite number"


def figures(value: float, other: float) -> tuple[str, str]:
    """Two different values, with as many digits as needed to tell them apart."""
    for digits in (4, 6, 9, 12):
        first, second = f"{value:.{digits}g}", f"{other:.{digits}g}"
        if first != second:
            return first, second
    return repr(value), repr(other)


def figure(value: float) -> str:
    return f"{value:.4g}"
