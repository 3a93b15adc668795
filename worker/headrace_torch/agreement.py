"""How well the surrogate's ranking agrees with the target's: Kendall's τ, and the regret of the best k.

A trial that failed or diverged has no score: it ranks last, tied with the others that have no score.

The scheduler, which has no torch, also uses this to choose a study's scale; so only the standard library is used
here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Score = float | None
TOP: Final = 5
"""The regret on the target is computed for this many of the surrogate's best."""
LEAST_PILOT: Final = 2 * TOP
"""The top five of fewer configurations mean nothing."""
LEAST_KENDALL: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A comparison of two rankings of the same trials.

    Attributes:
        kendall: τ-b between the scores, in [-1, 1]; 0 if one of the rankings is all ties.
        regret: by k: how much worse the best of the surrogate's top k is on the target than the best of all; never
            negative, and None if all of the top k failed.
        first_at: the rank, on the target, of the surrogate's best; from 1.
    """

    kendall: float
    regret: Mapping[int, float | None]
    first_at: int

    def is_enough(self, *, least_kendall: float, most_regret: float) -> bool:
        """Whether a pilot with this agreement lets the surrogate replace the target."""
        regret = self.regret[TOP]
        return self.kendall >= least_kendall and regret is not None and regret <= most_regret


def agreement(
    surrogate: Sequence[Score],
    target: Sequence[Score],
    *,
    maximize: bool = False,
    ks: Sequence[int] = (1, 2, 5),
) -> Agreement:
    """Compares scores of the same trials.

    Args:
        surrogate: a score per trial on the surrogate.
        target: the same trials' scores on the target.
        maximize: whether more is better.
        ks: the k for which to compute the regret; a k beyond the number of trials means all of them.

    Raises:
        ValueError: fewer than two trials, unequal numbers, or no score on the target.
    """
    if len(surrogate) != len(target) or len(target) < 2:
        raise ValueError(
            f"rankings need the same two trials or more; there are {len(surrogate)} on the surrogate and {len(target)} "
            "on the target"
        )
    badness = [as_badness(one, maximize=maximize) for one in surrogate]
    true_badness = [as_badness(one, maximize=maximize) for one in target]
    best = min(true_badness)
    if math.isinf(best):
        raise ValueError("no trial has a score on the target")
    order = ranking(surrogate, maximize=maximize)
    regret: dict[int, float | None] = {}
    for k in ks:
        reached = min(true_badness[index] for index in order[:k])
        regret[k] = None if math.isinf(reached) else reached - best
    better = sum(value < true_badness[order[0]] for value in true_badness)
    return Agreement(kendall=kendall_tau_b(badness, true_badness), regret=regret, first_at=1 + better)


def ranking(scores: Sequence[Score], *, maximize: bool = False) -> list[int]:
    """Indexes from best to worst; ties in the given order, trials without a score last."""
    return sorted(range(len(scores)), key=lambda index: as_badness(scores[index], maximize=maximize))


def as_badness(score: Score, *, maximize: bool) -> float:
    """A number that is smaller for a better trial; infinite without a score."""
    if score is None or not math.isfinite(score):
        return math.inf
    return -score if maximize else score


def kendall_tau_b(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Kendall's τ-b (Kendall 1945), which counts ties; O(n²)."""
    concordant = discordant = ties_x = ties_y = 0
    for i in range(len(xs)):
        for j in range(i):
            x, y = _sign(xs[i], xs[j]), _sign(ys[i], ys[j])
            ties_x += x == 0
            ties_y += y == 0
            concordant += x * y > 0
            discordant += x * y < 0
    pairs = len(xs) * (len(xs) - 1) // 2
    scale = math.sqrt((pairs - ties_x) * (pairs - ties_y))
    return (concordant - discordant) / scale if scale else 0.0


def _sign(one: float, two: float) -> int:
    return (one > two) - (one < two)
