"""A few plans to measure, instead of one to trust.

The predictions of a model that was not fitted are off by a few per cent, and many plans are as close to the best.
Only a measurement shows which of them is fastest. Predictions for plans that split the model differently have
different errors, so a shortlist holds one plan for each split (d, m, s): the fastest by prediction.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
NEAR: Final = 0.03
"""The cost model's own error: plans that are predicted to be slower by no more than this may be faster."""
LEAST: Final = 2
MOST: Final = 5


def shortlist(
    plans: Iterable[T],
    seconds: Callable[[T], float],
    split: Callable[[T], Hashable],
    *,
    near: float = NEAR,
    least: int = LEAST,
    most: int = MOST,
) -> list[T]:
    """The best plan of each split within `near` of the best, fastest first; from `least` to `most` plans, if there
    are enough.

    Splits further off fill the list up to `least`, because a single plan has nothing to compare with. `within`
    identifies them.
    """
    chosen: dict[Hashable, T] = {}
    for plan in sorted(plans, key=seconds):
        if split(plan) in chosen:
            continue
        limit = (1 + near) * seconds(next(iter(chosen.values()), plan))
        if len(chosen) >= most or (len(chosen) >= least and seconds(plan) > limit):
            break
        chosen[split(plan)] = plan
    return list(chosen.values())


def within(seconds: float, best: float) -> bool:
    """Whether a plan may be faster than the best by prediction: it is predicted to be slower by no more than the
    error."""
    return seconds <= (1 + NEAR) * best
