"""Independent draws.

Every parameter of every proposal has a random generator of its own, seeded with the study's seed, the number of
the proposal and the parameter's place in the space. A study that begins from an earlier one has the earlier one's name
in its seeds, lest it draw what that one drew. So a proposal never depends on timing or on the ones before it,
and a parameter that does not exist in a configuration shifts no other draw.
"""

import zlib

from headrace.spec import Domain, StudySpec
from headrace.spec.space import draw
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.core.sampling import draw_value, seeded


class RandomSampler:
    """Uniform draws, in the logarithm where `log` is set."""

    def __init__(self, spec: StudySpec) -> None:
        self._space = spec.space
        self._seed = spec.seed
        warm = spec.warm_start
        self._earlier = () if warm is None else (zlib.crc32(warm.study.encode()),)
        self._places = {name: place for place, name in enumerate(spec.space)}

    @property
    def size(self) -> int | None:
        return None

    def suggest(self, number: int) -> Params:
        def choose(name: str, domain: Domain) -> bool | int | float | str:
            return draw_value(domain, seeded(self._seed, number, self._places[name], *self._earlier))

        return draw(self._space, choose)
