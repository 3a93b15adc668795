"""The stable interface for packages with their own policy or sampler.

    policies    subclass `StoppingRule` for a rule that stops trials on the way, or `Policy` for any other
    samplers    write a class with the method of `OwnSampler`
    tests       `plugins.testing` has the contract suite

`docs/how-to/own-policy.md` is the introduction; `examples/own_policy` is a complete package.
"""

from headrace.spec import Domain, StudySpec, Value
from headrace.spec.space import draw
from headrace_services.scheduler.core.policies import (
    Action,
    Explanation,
    Policy,
    Promotion,
    RungResult,
    Verdict,
)
from headrace_services.scheduler.core.policies.sentences import no_value_sentence, place_sentence
from headrace_services.scheduler.core.policies.stopping import StoppingRule
from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.core.sampling import draw_value
from headrace_services.scheduler.samplers.history import Result
from headrace_services.scheduler.samplers.own import OwnSampler

__all__ = [
    "Action",
    "Domain",
    "Explanation",
    "OwnSampler",
    "Params",
    "Policy",
    "Promotion",
    "Result",
    "RungResult",
    "StoppingRule",
    "StudySpec",
    "Value",
    "Verdict",
    "draw",
    "draw_value",
    "no_value_sentence",
    "place_sentence",
]
