"""Who explores what: which position on the fan each replica takes for each hyperparameter, at each sync.

A design is a pure function of (seed, sync, names, N). It sorts BLAKE2 digests instead of drawing from a generator,
so no global random state is read or written: an extra draw on one rank (a dropout layer, a shuffled loader) cannot
make two replicas take the same position.

- `permutation`: the paper's independent permutation per hyperparameter. Two of them at N=4 have a
  correlation with standard deviation 1/√3 ≈ 0.58, which credits one hyperparameter with the other's effect.
- `antithetic`: permutations that last for two syncs, mirrored in the second: a replica with easier data does not
  bias the signal.
- `orthogonal`: permutations picked to be nearly uncorrelated, held for a block of syncs and mirrored according to
  a Walsh matrix, with one row per hyperparameter. Over a block, every pair is exactly uncorrelated and every
  replica's positions add to zero, for any N.

Mirroring a permutation of symmetric positions is again a permutation of them.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, assert_never

from headrace_torch.hdet.rules import positions

DesignName = Literal["orthogonal", "antithetic", "permutation"]
DESIGNS: tuple[DesignName, ...] = ("orthogonal", "antithetic", "permutation")
CANDIDATES = 48  # permutations tried per hyperparameter; at N=4 there are 24 in all


def assign(
    design: DesignName, *, seed: int, sync: int, names: Sequence[str], n: int
) -> tuple[tuple[int, ...], ...]:
    """Returns, for each name, the position index of every replica: a permutation of range(n)."""
    match design:
        case "permutation":
            return tuple(_order(f"{seed}/{sync}/{name}", n) for name in names)
        case "antithetic":
            block, turn = divmod(sync, 2)
            picked = tuple(_order(f"{seed}/{block}/{name}", n) for name in names)
            return tuple(_mirrored(order) for order in picked) if turn else picked
        case "orthogonal":
            length = block_length(len(names))
            block, turn = divmod(sync, length)
            return tuple(
                _mirrored(order) if walsh(row, turn) < 0 else order
                for row, order in enumerate(_uncorrelated(seed, block, names, n), start=1)
            )
        case _:
            assert_never(design)


def block_length(hyperparameters: int) -> int:
    """Returns the number of syncs after which an orthogonal design is balanced: the power of two above the number
    of columns."""
    return 1 << hyperparameters.bit_length()


def walsh(row: int, turn: int) -> int:
    """Returns an entry, ±1, of the Walsh–Hadamard matrix: distinct rows are orthogonal.

    Rows after the first add to 0.
    """
    return -1 if (row & turn).bit_count() % 2 else 1


def correlation(a: Sequence[int], b: Sequence[int]) -> float:
    """Returns the correlation of the positions of two permutations."""
    places = positions(len(a))
    scale = sum(place * place for place in places)
    return sum(places[i] * places[j] for i, j in zip(a, b, strict=True)) / scale if scale else 0.0


def _uncorrelated(seed: int, block: int, names: Sequence[str], n: int) -> list[tuple[int, ...]]:
    """Picks columns one after another, each the least correlated with the earlier ones among many candidates."""
    columns: list[tuple[int, ...]] = []
    for name in names:
        # One candidate is enough for the first column, and for two replicas, where all columns are ± the same.
        count = CANDIDATES if columns and n > 2 else 1
        candidates = (_order(f"{seed}/{block}/{name}/{number}", n) for number in range(count))
        columns.append(min(candidates, key=lambda c: round(sum(correlation(c, o) ** 2 for o in columns), 12)))
    return columns


def _order(key: str, n: int) -> tuple[int, ...]:
    return tuple(
        sorted(range(n), key=lambda rank: blake2b(f"{key}/{rank}".encode(), digest_size=16).digest())
    )


def _mirrored(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(len(order) - 1 - place for place in order)
