"""Independent draws.

Every parameter of every proposal has its own random generator, seeded with the study's seed, the number of the
proposal and the parameter's place in the space. If a study starts from an earlier one, its seeds include the name
of that one, so that it does not repeat its draws. So a proposal never depends on timing or on earlier proposals,
and a parameter that does not exist in a configuration changes no other draw.
"""

import zlib

from headrace.spec import Domain, StudySpec
from headrace.spec.space import draw
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.core.sampling import draw_value, seeded


class RandomSampler:
    """Uniform draws, on a log scale if `log` is set."""

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
