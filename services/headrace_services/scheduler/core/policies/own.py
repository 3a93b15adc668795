"""A policy of an installed package.

It is trusted as much as a built-in policy: if it raises an exception in a cycle, its study is quarantined, and no
other one. It must use the rungs of the study, because workers and clients read them from the study.
"""

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec import OwnPolicy, StudySpec
from headrace_services.scheduler.core import plugins
from headrace_services.scheduler.core.policies.protocol import Policy

METHODS = ("ladder", "record", "promoted", "withdraw", "verdict", "next_promotion", "bracket", "joined")


def make_own(spec: StudySpec, own: OwnPolicy) -> Policy:
    """Make the package's policy from the study's options."""
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
