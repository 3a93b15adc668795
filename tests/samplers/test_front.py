"""The front equals its definition."""

import random

import pytest
from tiers import processor_time

from headrace_services.scheduler.samplers.front import front


def by_definition(vectors: list[tuple[float, ...]], signs: list[float]) -> set[int]:
    turned = [tuple(s * v for s, v in zip(signs, vector, strict=True)) for vector in vectors]

    def dominated(place: int) -> bool:
        mine = turned[place]
        return any(
            other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in turned
        )

    return {place for place in range(len(turned)) if not dominated(place)}


@pytest.mark.parametrize("objectives", [1, 2, 3, 5])
def test_the_front_is_what_the_definition_says(objectives: int) -> None:
    drawn = random.Random(objectives)
    for _ in range(60):
        signs = [drawn.choice([-1.0, 1.0]) for _ in range(objectives)]
        # Few values, so that ties and equal vectors are common.
        vectors = [
            tuple(float(drawn.randrange(6)) for _ in range(objectives)) for _ in range(drawn.randrange(40))
        ]
        places = front(vectors, signs)
        assert set(places) == by_definition(vectors, signs)
        assert len(places) == len(set(places))
        firsts = [signs[0] * vectors[place][0] for place in places]
        assert firsts == sorted(firsts)


@pytest.mark.timeout(60)
def test_a_front_of_all_trials_is_found_in_time() -> None:
    trade_off = [(share / 5000, 1 - share / 5000) for share in range(5000)]
    with processor_time(at_most_s=5):
        assert len(front(trade_off, [1.0, 1.0])) == 5000
        assert len(front([(*pair, 0.5) for pair in trade_off[:2000]], [1.0, 1.0, 1.0])) == 2000
