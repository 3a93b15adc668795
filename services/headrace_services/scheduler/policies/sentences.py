"""How decisions are said: one sentence with the figures, the same wording in all policies."""

import math

from headrace_services.scheduler.policies.protocol import RungResult


def place_sentence(result: RungResult, rank: int, results: int) -> str:
    """Rank and rung: `rank 5 of 14 at rung 1 (3 steps)`."""
    steps = "step" if result.milestone == 1 else "steps"
    return f"rank {rank} of {results} at rung {result.rung} ({result.milestone} {steps})"


def standing(result: RungResult, rank: int, results: int, kept: int) -> str:
    """Rank, rung and how many are kept: `rank 5 of 14 at rung 1 (3 steps); the best 4 are kept`."""
    match kept:
        case 0:
            keeps = "none is kept yet"
        case 1:
            keeps = "the best one is kept"
        case _:
            keeps = f"the best {kept} are kept"
    return f"{place_sentence(result, rank, results)}; {keeps}"


def compare_sentence(value: float | None, cutoff: float | None, rank: int, kept: int) -> str:
    """The value against the last one kept."""
    if value is None or cutoff is None:
        shown = "no value" if value is None else f"value {figure(value)}"
        return f"{shown} has no cutoff to meet yet"
    first, second = figures(value, cutoff)
    if value == cutoff:
        late = "" if rank <= kept else ", but arrived later"
        return f"value {first} equals the cutoff{late}"
    word = "better" if rank <= kept else "worse"
    return f"value {first} is {word} than the cutoff {second}"


def no_value_sentence(result: RungResult) -> str:
    """Why a result cannot be ranked."""
    if result.value is None:
        return "the metric was missing"
    return f"the value is {'NaN' if math.isnan(result.value) else result.value}, not a finite number"


def figures(value: float, other: float) -> tuple[str, str]:
    """Two different values, with as many digits as it takes to tell them apart."""
    for digits in (4, 6, 9, 12):
        first, second = f"{value:.{digits}g}", f"{other:.{digits}g}"
        if first != second:
            return first, second
    return repr(value), repr(other)


def figure(value: float) -> str:
    return f"{value:.4g}"
