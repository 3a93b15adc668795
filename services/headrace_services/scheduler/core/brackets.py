"""Which bracket a trial belongs to.

Bracket s skips the first s rungs, so its trials are compared later and cost more. Hyperband (JMLR 18, algorithm 1)
gives every bracket about the same budget, and ASHA draws brackets so that this holds on average. Of L levels,
bracket s has L-s, and Hyperband starts it with n = ⌈L/(L-s)·η^(L-s-1)⌉ trials. Weighting the draw by n spends the
same on all brackets. A uniform draw would spend nearly everything on the late ones, whose trials cost η^s times as
much.
"""

import hashlib


def bracket_weights(levels: int, brackets: int, eta: int) -> tuple[int, ...]:
    """The number of trials that Hyperband starts in each of the first `brackets` brackets of `levels` rungs."""
    # ⌈L·η^(L-s-1) / (L-s)⌉ in integers
    return tuple(-(-levels * eta ** (left - 1) // left) for left in range(levels, levels - brackets, -1))


def draw_bracket(
    seed: int, trial_number: int, brackets: int, *, levels: int | None = None, eta: int = 3
) -> int:
    """The bracket of a trial, which depends only on the study's seed and the trial's number.

    `levels` is the number of rungs of bracket 0; without it, there is one bracket for each.
    """
    weights = bracket_weights(levels or brackets, brackets, eta)
    text = f"headrace bracket {seed} {trial_number}"
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])
    place = drawn * sum(weights) >> 128
    for bracket, weight in enumerate(weights):
        if place < weight:
            return bracket
        place -= weight
    raise ValueError("there is no bracket to draw from")
