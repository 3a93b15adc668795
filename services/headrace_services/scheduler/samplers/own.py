"""A sampler of an installed package, as a learner.

It is asked like every model: in a process of the pool, with a time limit, three times before a random draw takes
its place. Between two proposals it keeps nothing that does not follow from its arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from headrace.spec import OwnSampler as Named
from headrace.spec import StudySpec, Value
from headrace_services.scheduler.core import plugins
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.history import Result
from headrace_services.scheduler.samplers.protocol import Suggestion


class OwnSampler(Protocol):
    """The object that a package makes from a study and its options."""

    def suggest(
        self,
        number: int,
        results: Sequence[Result],
        pending: Sequence[Params],
        generator: np.random.Generator,
    ) -> Mapping[str, Value]:
        """Proposal `number`, counted from 0.

        `results` are in the order of their arrival; `pending` configurations have none yet. `generator` is seeded with
        the study's seed and the number. The same arguments give the same proposal.
        """
        ...


def make_own_sampler(spec: StudySpec, own: Named) -> OwnSampler:
    """The sampler that the package makes from the study's options. Raises InvalidFieldError if there is none."""
    made: OwnSampler = plugins.made(plugins.SAMPLER, spec, own.name, own.options, methods=("suggest",))
    return made


class OwnLearner:
    """A learner that keeps the results and asks the package's sampler."""

    def __init__(self, spec: StudySpec, own: Named) -> None:
        self._seed = spec.seed
        self._own = make_own_sampler(spec, own)
        self._results: list[Result] = []

    @property
    def learnt(self) -> int:
        return len(self._results)

    def learn(self, results: Sequence[Result]) -> None:
        self._results += results

    def suggest(self, number: int, pending: Sequence[Params], *, attempt: int = 0) -> Suggestion:
        seeds = np.random.SeedSequence(self._seed, spawn_key=(number, attempt))
        generator = np.random.default_rng(seeds)
        params = self._own.suggest(number, tuple(self._results), tuple(pending), generator)
        return Suggestion(params={name: _plain(name, value) for name, value in params.items()})


def _plain(name: str, value: object) -> Value:
    """A proposed value without NumPy's types. Raises TypeError for what cannot be a parameter's value."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool | int | float | str):
        return plain
    said = f"the sampler proposed {value!r} of type {type(value).__name__} for parameter {name!r}"
    raise TypeError(f"{said}; let it propose a bool, an int, a float or a str")
