"""Plans as inputs for training frameworks, each with a report of what the framework cannot express.

A plan is first lowered to the target (`lowering`): axes that the target lacks take the nearest value that it has,
and the lowered plan is priced again, so that the report says what is lost in seconds and bytes.
"""

from headrace.errors import InvalidFieldError, Violation
from headrace_services.planner.emit import deepspeed, megatron
from headrace_services.planner.emit.lowering import GIB, Lowered, report
from headrace_services.planner.plan import Plan

_TARGETS = {"deepspeed": deepspeed, "megatron": megatron}


def emit(plan: Plan, target: str) -> dict[str, str]:
    """The target's files by name, and `lowering.md`.

    Raises KeyError for an unknown target, and InvalidFieldError if the substitute for an axis that the target
    lacks needs more memory than there is.
    """
    module = _TARGETS[target]
    lowered: Lowered = module.lower(plan)
    if lowered.overflow_bytes:
        raise _too_large(lowered, target)
    return {**module.files(lowered), "lowering.md": report(lowered, target)}


def _too_large(lowered: Lowered, target: str) -> InvalidFieldError:
    instead = "; ".join(f"{note.what} becomes {note.instead}" for note in lowered.notes)
    short = lowered.overflow_bytes / GIB
    message = f"cannot run this plan in the memory there is: its fullest stage is {short:.1f} GiB short, as {instead}"
    remedy = "Plan for what the target has (such as --zero 1 or --attention flash), or leave out the target."
    return InvalidFieldError([Violation(field="target", value=target, message=message, remedy=remedy)])
