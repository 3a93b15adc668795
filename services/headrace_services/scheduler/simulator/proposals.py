"""The sampler of a simulated study: the recorded configurations if the curves have some, else only names.

Values do not depend on configurations here (a synthetic curve is drawn, a recorded one is looked up), so no model
could learn anything from them, and none is run: proposals are counted, not made. The study decides how many there
are, as a grid may have fewer points than the requested trials. If resources depend on a parameter, configurations
are drawn, as the study's own sampler does without a model.
"""

from headrace.spec import StudySpec
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers import make_sampler
from headrace_services.scheduler.simulator.curves import Curves


class Proposals:
    """As many configurations as the study and its curves have."""

    def __init__(self, spec: StudySpec, curves: Curves) -> None:
        sampler = make_sampler(spec)
        own = sampler.size
        self._sampler = sampler if spec.resources.by is not None else None
        self._curves = curves
        self._first = len(spec.enqueued) + (spec.baseline is not None)
        left = None if curves.size is None else max(0, curves.size - self._first)
        sizes = [size for size in (own, left) if size is not None]
        self._size = min(sizes) if sizes else None

    @property
    def size(self) -> int | None:
        return self._size

    def suggest(self, number: int) -> Params | None:
        if self._size is not None and number >= self._size:
            return None
        recorded = self._curves.params(self._first + number)
        if recorded is None and self._sampler is not None:
            return self._sampler.suggest(number)
        return recorded or {}
