"""The cost of the studies that are created together with a study: the pilot before it, and the targets after it.

Both train every trial to the end of their own budget, so their steps are exact. As many of their trials run at
once as fit on the slots that the preview assumes. The gate is not counted: it trains only a few steps.
"""

import heapq
from collections import Counter

from headrace.spec import StudySpec
from headrace.spec.pilot import SCALE
from headrace.spec.resources import WHOLE
from headrace_services.scheduler.analysis.figures import PreviewCompanion
from headrace_services.scheduler.core.placement import requests_of, sizes_differ
from headrace_services.scheduler.samplers.spread import pilot_configurations

NAME = "previewed"


def companions(
    spec: StudySpec, slots: int, step_s: float | None, target_step_s: float | None
) -> tuple[PreviewCompanion, ...]:
    """The other studies that are created with a study, in the order in which they run. A preview assumes `slots`
    for the study.

    A step of a target, or of a pilot's trial that trains the model itself, takes `target_step_s`.
    """
    found = []
    if spec.surrogate is not None and spec.surrogate.pilot is not None:
        pilot = spec.pilot_study(pilot_configurations(spec))
        by_scale = Counter(params[SCALE] for params in pilot.enqueued)
        found.append(
            _companion(
                "pilot",
                pilot,
                at_once(spec, slots, pilot),
                [(count, target_step_s if scale == 1 else step_s) for scale, count in by_scale.items()],
            )
        )
    if spec.transfer is not None:
        target = spec.target(NAME)
        found.append(
            _companion("target", target, at_once(spec, slots, target), [(target.max_trials, target_step_s)])
        )
    return tuple(found)


def at_once(spec: StudySpec, slots: int, other: StudySpec) -> int:
    """How many trials of another study run at once if a study has `slots`, as its preview counts them."""
    room = slots * (WHOLE if sizes_differ(spec) else size(spec))
    return max(1, room // size(other))


def size(spec: StudySpec) -> int:
    """The thousandths of slots that a trial takes at most, over all its slots."""
    return requests_of(spec)[-1].size


def _companion(
    role: str, study: StudySpec, machines: int, kinds: list[tuple[int, float | None]]
) -> PreviewCompanion:
    """A study of this many trials of each kind, with the time that their steps take."""
    trials = sum(count for count, _ in kinds)
    each = study.fuse.most if study.fuse is not None else 1
    jobs = Counter[float]()
    for count, step_s in kinds:
        if step_s is not None:
            jobs[step_s * study.max_steps] += -(-count // each)
    known = all(step_s is not None for _, step_s in kinds)
    return PreviewCompanion(
        role=role,
        trials=trials,
        steps=trials * study.max_steps,
        wall_time_s=_wall_s(jobs, machines) if known else None,
        slot_time_s=sum(s * count for s, count in jobs.items()) * size(study) / WHOLE if known else None,
    )


def _wall_s(jobs: Counter[float], machines: int) -> float:
    """When the last of these jobs ends, if the longest ones start first."""
    if len(jobs) == 1:
        ((each_s, count),) = jobs.items()
        return -(-count // machines) * each_s
    ends = [0.0] * min(machines, jobs.total())
    for each_s in sorted(jobs.elements(), reverse=True):
        heapq.heapreplace(ends, ends[0] + each_s)
    return max(ends)
