"""The configuration that a study is checked with: its baseline, else the first one to try, else one drawn here.

The draw depends on the study's seed and the parameters' names alone, so that a check can be repeated.
"""

import math
import random
from typing import assert_never

from headrace.spec import CategoricalDomain, Domain, FloatDomain, IntDomain, StudySpec, Value
from headrace.spec.space import draw


def configuration_of(spec: StudySpec) -> tuple[dict[str, Value], str]:
    """The parameters, and in words where they come from."""
    if spec.baseline is not None:
        return dict(spec.baseline), "the study's baseline"
    if spec.enqueued:
        return dict(spec.enqueued[0]), "the first configuration of `enqueue`"

    def choose(name: str, domain: Domain) -> Value:
        return _drawn(domain, random.Random(f"{spec.seed}/{name}"))  # noqa: S311 - a draw, not a secret

    return draw(
        spec.space, choose
    ), f"drawn from the space with seed {spec.seed}, for the study has no baseline"


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
