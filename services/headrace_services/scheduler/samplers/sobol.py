"""A scrambled Sobol sequence over the unit cube, with one coordinate for each parameter.

The sequence is SciPy's, as in Optuna's QMCSampler. That sampler takes its space from the first trial, so
parameters that the first trial lacks would be drawn independently. Here every parameter has its coordinate in
every proposal, and those that do not exist in a configuration are left out of it. The points of the parameters
that always exist are still a Sobol sequence.
"""

from typing import TYPE_CHECKING

from headrace.spec import StudySpec
from headrace.spec.space import draw
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.shares import at_share

if TYPE_CHECKING:
    from scipy.stats import qmc

_LONGEST = 2**30
"""SciPy's sequence has 30 bits; after that it restarts with another scramble."""


class SobolSampler:
    """Proposal n is point n of the sequence that the study's seed scrambles.

    The proposal after the last one costs only its point; any other one restarts the sequence.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._space = spec.space
        self._seed = spec.seed
        self._places = {name: place for place, name in enumerate(spec.space)}
        self._engine: qmc.Sobol | None = None
        self._next = 0

    @property
    def size(self) -> int | None:
        return None

    def suggest(self, number: int) -> Params | None:
        if self._engine is None or number != self._next or number % _LONGEST == 0:
            self._engine = self._at(number)
        self._next = number + 1
        point = self._engine.random(1)[0]
        return draw(self._space, lambda name, domain: at_share(domain, float(point[self._places[name]])))

    def _at(self, number: int) -> "qmc.Sobol":
        # They take half a second, so import them only when a point is requested.
        import numpy as np
        from scipy.stats import qmc

        turn, place = divmod(number, _LONGEST)
        generator = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(turn,)))
        engine = qmc.Sobol(len(self._space), scramble=True, rng=generator)
        if place:
            engine.fast_forward(place)
        return engine
