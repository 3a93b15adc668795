"""The original budget of a study that was extended (`headrace extend`)."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel
from headrace.spec.problems import Problem
from headrace.spec.rungs import EvenPolicy
from headrace.spec.scalars import Count, Steps


class Extended(SpecModel):
    """The original number of configurations, and the previous full budgets, oldest first."""

    trials: Count
    steps: tuple[Steps, ...] = ()


def extended_problems(extended: Extended, known: Mapping[str, Any]) -> Iterator[Problem]:
    """Conflicts between an extension and the study's other valid fields."""
    if "max_trials" in known and extended.trials > known["max_trials"]:
        yield Problem(
            loc=("extended", "trials"),
            value=extended.trials,
            message=f"is more than the {known['max_trials']} configurations that there are now",
            remedy="An extension adds configurations.",
        )
    budgets = (*extended.steps, *([known["max_steps"]] if "max_steps" in known else ()))
    for place, (before, after) in enumerate(pairwise(budgets)):
        if before >= after:
            yield Problem(
                loc=("extended", "steps", place),
                value=before,
                message=f"is not less than the full budget behind it, which is {after}",
                remedy="List the earlier budgets in increasing order.",
            )


def too_many_rungs(policy: object, rungs: int) -> bool:
    """Whether an extension makes too many rungs, of an interval that the user chose: every assignment of a trial
    lists them.
    """
    chosen = getattr(policy, "interval", None) is not None or not isinstance(policy, EvenPolicy)
    return chosen and rungs > numbers.RUNGS
