"""Whether a parameter that a population changes between two steps has an effect. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from headrace.check.compare import first_difference
from headrace.check.report import Missing, plain
from headrace.check.snapshot import Kind, SegmentResult
from headrace.last_words import error_line
from headrace.trial.runtime import Value


def unused_parameter(
    name: str,
    params: Mapping[str, Value],
    mutated: Mapping[str, Value],
    restored: SegmentResult,
    changed: SegmentResult,
) -> Missing | None:
    """The finding for a member that trains the same with a different value; None if the value has an effect.

    Both runs are restored from one checkpoint. A metric that only repeats the value is not an effect.
    """
    step = restored.resume_step
    change = f"{name} changed from {plain(params[name])} to {plain(mutated[name])} at step {step}"
    if changed.error:
        return Missing(
            kind=Kind.PARAMETER,
            finding=f"{change} fails: {error_line(changed.error)}",
            remedy=f"leave {name} out of policy.mutable, the list of those that mutate",
            step=step,
        )
    told = _without(restored, params[name]), _without(changed, mutated[name])
    if first_difference(told[0], [told[1]]) is not None:
        return None
    return Missing(
        kind=Kind.PARAMETER,
        finding=f"{change} has no effect: the next step is the same bit by bit",
        remedy=f'set it inside the loop, from t.params["{name}"], as the restored state brings the old one '
        f"(for group in optimizer.param_groups: group[...] = ...), or leave {name} out of policy.mutable",
        step=step,
    )


def _without(result: SegmentResult, value: Value) -> SegmentResult:
    """The result without the metrics that repeat a parameter's value."""
    repeated = float(value).hex() if isinstance(value, int | float) else ""
    reports = tuple(
        replace(one, metrics={name: told for name, told in one.metrics.items() if told != repeated})
        for one in result.reports
    )
    return replace(result, reports=reports)
