"""The points of a finite space, so that each is tried once before any is repeated.

A point is identified by the index of each active parameter's value. So inactive parameters make no difference, nor
do rounding errors of a step. A proposal that was tried before is replaced by an untried point:

- of a grid, by the next one in its order;
- of random draws, by a further draw, so that a logarithmic range is still sampled logarithmically;
- of a model, by one that differs in a single parameter, the nearest values first, which is close to what the model
  asked for.

If that finds none, it is the next untried point from a random place on. Once all points are tried, proposals are
left as they are: repeats show how noisy a result is. A grid ends instead.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice

from headrace.spec import CategoricalDomain, Domain, GridSampler, StudySpec
from headrace.spec.grid import Grid, Point, Scalar
from headrace.spec.space import draw
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.core.sampling import draw_value, seeded

_AGAIN = 2**31
"""In seeds, next to the indices of parameters: a further draw."""
_DRAWS = 64
_NEIGHBOURS = 256
_FURTHER = 2048
"""How many further points are checked after those. Then a proposal is repeated, even if there may be an untried
point."""


class SpacePoints:
    """The points of one study's space, or of its grid."""

    def __init__(self, spec: StudySpec) -> None:
        self._ordered = isinstance(spec.sampler, GridSampler)
        self._grid = Grid(spec, spec.sampler if isinstance(spec.sampler, GridSampler) else GridSampler())
        self._space = spec.space
        self._seed = spec.seed

    @property
    def size(self) -> int:
        return self._grid.size

    def point(self, params: Mapping[str, Scalar]) -> Point | None:
        """The point of a configuration; None if it is not on the grid."""
        return self._grid.point(params)

    def untried(self, number: int, tried: Set[Point], beside: Params | None = None) -> Params | None:
        """An untried point for proposal `number`, near the one that a model asked for; None if all are tried, or
        none is found."""
        if len(tried) >= self.size:
            return None
        near = () if beside is None else islice(self._neighbours(number, beside), _NEIGHBOURS)
        drawn = () if self._ordered else (self._drawn(number, again) for again in range(_DRAWS))
        # A grid is searched to the end. In a larger space with few untried points that would block the event loop.
        rest = self._in_order(number) if self._ordered else islice(self._in_order(number), _FURTHER)
        for candidates in (near, drawn, rest):
            for params in candidates:
                if self.point(params) not in tried:
                    return params
        return None

    def _in_order(self, number: int) -> Iterator[Params]:
        size = self.size
        first = number % size
        if not self._ordered:  # sizes may be larger than a generator can draw from
            first = int(seeded(self._seed, number, _AGAIN).random() * size) % size
        for place in range(min(size, 2**62)):
            params = self._grid.suggest((first + place) % size)
            assert params is not None
            yield params

    def _drawn(self, number: int, again: int) -> Params:
        generator = seeded(self._seed, number, _AGAIN, again)
        return draw(self._space, lambda _, domain: draw_value(domain, generator))

    def _neighbours(self, number: int, params: Params) -> Iterator[Params]:
        """Configurations with another value of one parameter, the nearest first."""
        generator = seeded(self._seed, number, _AGAIN)
        names = list(params)
        generator.shuffle(names)
        further = {name: self._values_from(name, self._space[name], params[name]) for name in names}
        while further:
            for name in list(further):
                value = next(further[name], None)
                if value is None:
                    del further[name]
                    continue
                yield draw(self._space, self._choosing(params, name, value, number))

    def _choosing(
        self, params: Params, changed: str, value: Scalar, number: int
    ) -> Callable[[str, Domain], Scalar]:
        """The same values except for one; parameters that exist only now are drawn."""
        generator = seeded(self._seed, number, _AGAIN, _DRAWS)

        def choose(name: str, domain: Domain) -> Scalar:
            if name == changed:
                return value
            return params[name] if name in params else draw_value(domain, generator)

        return choose

    def _values_from(self, name: str, domain: Domain, value: Scalar) -> Iterator[Scalar]:
        """The other values of a parameter, the nearest to `value` first."""
        place, count = self._grid.place_of(name, value), domain.count
        assert place is not None, "a model proposes values of the space"
        assert count is not None, "each has a count in a finite space"
        for away in range(1, min(count, _NEIGHBOURS)):
            if isinstance(domain, CategoricalDomain):
                yield domain.value_at((place + away) % count)
                continue
            for other in (place - away, place + away):
                if 0 <= other < count:
                    yield domain.value_at(other)
