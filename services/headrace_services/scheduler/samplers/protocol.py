"""The protocols of samplers.

There are two kinds, which differ in what a proposal depends on. A `Sampler` is a function of the proposal's
number: it may be called anywhere, even in a cycle. A `Learner` also depends on the results so far. A fit costs CPU
time, so on a server it is called in a process of the pool, never on the event loop. Neither remembers what it
proposed: the same seed, number, results and pending trials give the same proposal, in any process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.core.sampling import Sampler

if TYPE_CHECKING:
    from headrace_services.scheduler.samplers.history import Result


ATTEMPTS = 3
"""How often a proposal is tried before a random draw takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A learner's proposal."""

    params: Params
    """The active parameters in the order of the space."""
    generation: int | None = None
    """The generation that it belongs to, for an evolutionary sampler. It is returned with the result."""
    is_draw: bool = False
    """Whether it is a random draw, because there are too few results."""


class Learner(Protocol):
    """A model of one study at one level. It never forgets a result."""

    @property
    def learnt(self) -> int:
        """How many results it was given."""
        ...

    def learn(self, results: "Sequence[Result]") -> None:
        """Add further results, in the order of their arrival."""
        ...

    def suggest(self, number: int, pending: Sequence[Params], *, attempt: int = 0) -> Suggestion:
        """Proposal `number`, counted from 0, while the results of the pending configurations are still to arrive.

        Another `attempt` at it, after a failure, uses another seed.
        """
        ...


class ByNumber:
    """A sampler by number as a learner that learns nothing."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._learnt = 0

    @property
    def learnt(self) -> int:
        return self._learnt

    def learn(self, results: "Sequence[Result]") -> None:
        self._learnt += len(results)

    def suggest(self, number: int, pending: Sequence[Params], *, attempt: int = 0) -> Suggestion:  # noqa: ARG002
        params = self._sampler.suggest(number)
        if params is None:
            raise IndexError(f"there is no proposal {number}")
        return Suggestion(params=params)
