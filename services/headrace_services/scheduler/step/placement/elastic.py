"""How many slots a trial gets, by the spec's table; and who may take spare ones."""

from headrace.spec import StudySpec
from headrace_services.scheduler.step.placement.values import Request


def request_at(spec: StudySpec, step: int) -> Request:
    """Return what a trial with `step` steps done takes."""
    slots = spec.elastic.slots_from(step) if spec.elastic else None
    return Request.of(spec.resources, slots)


def spare_slots(spec: StudySpec, milestone: int | None) -> int:
    """Return up to how many slots a trial on its way to `milestone` may take while nothing waits; 0 for none."""
    if spec.elastic is None or milestone is None or milestone < spec.max_steps:
        return 0
    return spec.elastic.spare
