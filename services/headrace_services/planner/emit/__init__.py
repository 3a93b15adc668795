"""Plans as inputs of training frameworks, each with a report of what the framework cannot express.

A target is lowered first (`lowering`): axes that it lacks take the nearest value that it has, and the plan is priced
again as lowered, so that the report says what is lost in seconds and bytes.
"""

from headrace_services.planner.emit import deepspeed, megatron
from headrace_services.planner.emit.lowering import Lowered, report
from headrace_services.planner.plan import Plan

_TARGETS = {"deepspeed": deepspeed, "megatron": megatron}


def emit(plan: Plan, target: str) -> dict[str, str]:
    """The target's files by name, and `lowering.md`. Raises KeyError for a target that is none."""
    module = _TARGETS[target]
    lowered: Lowered = module.lower(plan)
    return {**module.files(lowered), "lowering.md": report(lowered, target)}
