"""The Pareto front of a set of trials: those that no other one dominates.

A vector dominates another one if it is at least as good in every objective and better in one; equal vectors are
both on the front. After a lexicographic sort no vector is dominated by a later one, so each is compared with the
front so far. For two objectives the last vector of the front suffices, O(n log n) in all. For more it takes the
whole front, O(n·f) for a front of size f, vectorised. (10,000 vectors that are all on the front take half a
second, so callers use a thread.)
"""

from collections.abc import Sequence

import numpy as np


def front(vectors: Sequence[Sequence[float]], signs: Sequence[float]) -> list[int]:
    """The indices of the vectors on the front, ordered by the first objective and then by index.

    `vectors` (n × d) are finite; `signs` (d) is 1 if less is better and -1 if more is better.
    """
    if not vectors:
        return []
    turned = np.asarray(vectors, dtype=float) * np.asarray(signs, dtype=float)
    order = np.lexsort((np.arange(len(turned)), *turned.T[::-1]))
    if turned.shape[1] <= 2:
        return _swept(turned[:, [0, -1]], order)
    kept = np.empty_like(turned)
    count = 0
    found: list[int] = []
    for place in order.tolist():
        vector = turned[place]
        so_far = kept[:count]
        if not np.any(np.all(so_far <= vector, axis=1) & np.any(so_far < vector, axis=1)):
            kept[count] = vector
            count += 1
            found.append(place)
    return found


def _swept(pairs: np.ndarray, order: np.ndarray) -> list[int]:
    """Two objectives: a vector is on the front if it is better in the second one than all before, or equal to the
    last."""
    found: list[int] = []
    for place in order.tolist():
        if not found or pairs[place, 1] < pairs[found[-1], 1] or (pairs[place] == pairs[found[-1]]).all():
            found.append(place)
    return found
