"""The configuration with which a study is checked: its baseline, or else the first one to try, or else one drawn
here.

For a population, also the configurations to which its members may change it. The draws depend only on the
study's seed and the parameters' names, so that a check can be repeated.
"""

import math
import random
from collections.abc import Mapping
from typing import assert_never

from headrace.spec import CategoricalDomain, Domain, FloatDomain, IntDomain, PbtPolicy, StudySpec, Value
from headrace.spec.scalars import meaning
from headrace.spec.space import draw

_DRAWS = 16


def configuration_of(spec: StudySpec, given: Mapping[str, Value]) -> tuple[dict[str, Value], str]:
    """The parameters, and where they come from, in words. `given` replaces values; conditional parameters then come
    and go with their parents.
    """
    known, origin = _known(spec)

    def choose(name: str, domain: Domain) -> Value:
        for values in (given, known):
            if name in values:
                return values[name]
        return _drawn(domain, random.Random(f"{spec.seed}/{name}"))  # noqa: S311 - a draw, not a secret

    found = draw(spec.space, choose)
    if given:
        origin += ", with the given values"
    if known and not found.keys() <= given.keys() | known.keys():
        origin += "; the rest is drawn from the space"
    return found, origin


def _known(spec: StudySpec) -> tuple[Mapping[str, Value], str]:
    if spec.baseline is not None:
        return spec.baseline, "the study's baseline"
    if spec.enqueued:
        return spec.enqueued[0], "the first configuration of `enqueue`"
    return {}, f"drawn from the space with seed {spec.seed}, for the study has no baseline"


def other_configuration_of(spec: StudySpec, values: dict[str, Value]) -> dict[str, Value]:
    """A random configuration of the space that differs from this one; the same if no draw does."""
    found = values
    for number in range(_DRAWS):

        def choose(name: str, domain: Domain, number: int = number) -> Value:
            return _drawn(domain, random.Random(f"{spec.seed}/{number}/{name}"))  # noqa: S311 - as above

        found = draw(spec.space, choose)
        if any(meaning(found[name]) != meaning(values[name]) for name in found.keys() & values.keys()):
            break
    return found


def mutations_of(spec: StudySpec, values: dict[str, Value]) -> dict[str, dict[str, Value]]:
    """For each parameter that mutates while a trial trains: the configuration with a different value of it."""
    if not isinstance(spec.policy, PbtPolicy):
        return {}
    found = {}
    kept = spec.resources.by.parameter if spec.resources.by else None
    for mutable in spec.policy.mutable or (name for name in spec.space if name != kept):

        def choose(name: str, domain: Domain, mutable: str = mutable) -> Value:
            if name == mutable:
                return next(end for end in _ends(domain) if meaning(end) != meaning(values[name]))
            return values[name] if name in values else _drawn(domain, random.Random(name))  # noqa: S311 - as above

        if mutable in values and spec.space[mutable].count != 1:
            found[mutable] = draw(spec.space, choose)
    return found


def _ends(domain: Domain) -> tuple[Value, Value]:
    if isinstance(domain, CategoricalDomain):
        return domain.values[0], domain.values[-1]
    return domain.low, domain.high


def _drawn(domain: Domain, generator: random.Random) -> Value:
    match domain:
        case CategoricalDomain():
            return domain.value_at(generator.randrange(domain.count))
        case IntDomain(log=True) | FloatDomain(log=True):
            drawn = math.exp(generator.uniform(math.log(domain.low), math.log(domain.high)))
            within = min(max(drawn, domain.low), domain.high)
            return round(within) if isinstance(domain, IntDomain) else within
        case IntDomain():
            return domain.value_at(generator.randrange(domain.count))
        case FloatDomain():
            if domain.count is not None:
                return domain.value_at(generator.randrange(domain.count))
            share = generator.random()
            return (1.0 - share) * domain.low + share * domain.high
        case _:
            assert_never(domain)
