"""A policy of an installed package.

It is trusted as far as a policy of ours: what it raises in a cycle sets its study aside, and no other one. It agrees
with the study on the rungs, for workers and clients read them from the study.
"""

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec import OwnPolicy, StudySpec
from headrace_services.scheduler.core import plugins
from headrace_services.scheduler.core.policies.protocol import Policy

METHODS = ("ladder", "record", "promoted", "withdraw", "verdict", "next_promotion", "bracket", "joined")


def make_own(spec: StudySpec, own: OwnPolicy) -> Policy:
    """The policy that the package makes of the study's options."""
    policy: Policy = plugins.made(plugins.POLICY, spec, own.name, own.options, methods=METHODS)
    ladder = tuple(policy.ladder(0))
    if ladder != spec.rungs():
        raise InvalidFieldError(
            [
                Violation(
                    field="policy.name",
                    value=show_value(own.name),
                    message=f"has the rungs {show_value(ladder)}, but the study has {show_value(spec.rungs())}",
                    remedy="Let it take them from spec.rungs().",
                )
            ]
        )
    return policy
