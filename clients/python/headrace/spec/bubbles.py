"""`bubbles: true`: trials on low rungs may run in the idle windows of a large job's pipeline.

The default is false. Only the author of a program knows whether it passes the gate
(`headrace_torch.bubbles.join`); a program that does not would slow the large job. Such a slot is also slow, and
may be taken back at any time.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.spec.problems import Problem
from headrace.spec.resources import Elastic, Resources
from headrace.spec.template import TrialTemplate

_LEAVE_OUT = "or leave out bubbles."


def bubble_problems(known: Mapping[str, Any]) -> Iterator[Problem]:
    """Conflicts between `bubbles: true` and the study's other valid fields."""
    template: TrialTemplate | None = known.get("template")
    if "template" in known and template is None:
        yield _problem(
            "needs trials that run on workers", "Name their program: trial: {callable: train:train},"
        )
    elastic: Elastic | None = known.get("elastic")
    if elastic is not None:
        yield _problem("has one slot for a trial, and elastic changes its grant", "Leave out elastic,")
    resources: Resources | None = known.get("resources")
    if resources is None:
        return
    if resources.by is not None:
        yield _problem(
            "has one slot for a trial, and resources.by gives trials sizes of their own", "Give one size,"
        )
    elif resources.slots > 1:
        asked = f"and the study's resources ask for {resources.slots}"
        yield _problem(f"has one slot for a trial, {asked}", "Ask for one GPU or one CPU slot,")
    elif resources.exclusive:
        yield _problem(
            "shares a GPU with a large job, and resources.exclusive rules that out", "Leave that out,"
        )
    elif resources.milli < 1000:
        yield _problem("has whole slots, and the study's resources ask for a share", "Ask for one GPU,")
    elif resources.on_gpu and not resources.gpu_memory_bytes:
        yield Problem(
            loc=("resources", "gpu_memory_bytes"),
            message="is missing: the GPU of a large job has little memory left for trials",
            remedy="Say what a trial needs, with fuse what a full bundle needs: gpu_memory_bytes: 20e9, "
            + _LEAVE_OUT,
        )


def _problem(message: str, remedy: str) -> Problem:
    return Problem(loc=("bubbles",), value=True, message=message, remedy=f"{remedy} {_LEAVE_OUT}")
