"""The configurations of a pilot: spread over the space, without duplicates."""

import json

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import StudySpec
from headrace.spec.pilot import FEWEST
from headrace.spec.values import params_to_json
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.sobol import SobolSampler

DRAWS = 8
"""How many configurations are drawn for each one that a pilot needs: a small space may give duplicates."""


def pilot_configurations(spec: StudySpec) -> tuple[Params, ...]:
    """The configurations that the pilot of a study tries. Raises InvalidFieldError if the space has too few."""
    assert spec.surrogate is not None
    assert spec.surrogate.pilot is not None
    wanted = spec.surrogate.pilot.configurations
    sampler = SobolSampler(spec)
    tried: dict[str, Params] = {}
    for number in range(DRAWS * wanted):
        drawn = sampler.suggest(number)
        if drawn is not None and len(tried) < wanted:
            tried[json.dumps(params_to_json(drawn))] = drawn
    if len(tried) >= FEWEST:
        return tuple(tried.values())
    violation = Violation(
        field="surrogate.scale",
        value="auto",
        message=f"compares {FEWEST} configurations at least, and {len(tried)} were found in this space",
        remedy="Say how small the copy is, such as scale: 8, or widen the space.",
    )
    raise InvalidFieldError([violation])
