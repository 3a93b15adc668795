"""Policies as a user names them, and the rung levels that follow.

Rung levels are found by multiplying integers, never with logarithms of floats: 243/1 with η=3 has the six levels
1, 3, 9, 27, 81, 243. Where min_steps·η^k misses max_steps, the ladder is every level below max_steps and then
max_steps itself: 100/1 with η=3 has 1, 3, 9, 27, 81, 100. No level that the user expects is moved, and every trial
that completes has had the full budget.
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from headrace.spec.domains import SpecModel
from headrace.spec.pbt import PbtPolicy, pbt_problems
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.scalars import INT32_MAX, Steps, integer_within

_MAX_RUNGS = 256
_MAX_BRACKETS = 64


class RunAllPolicy(SpecModel):
    """Every trial runs to the full budget."""

    kind: Literal["run_all"] = "run_all"

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones of bracket 0."""
        return (max_steps,)


class AshaVariant(StrEnum):
    """What happens to a trial outside the best 1/η of its rung: it is paused, or it is stopped."""

    PROMOTION = "promotion"
    STOPPING = "stopping"


def _increasing(rungs: tuple[int, ...]) -> tuple[int, ...]:
    if len(rungs) > _MAX_RUNGS:
        raise fault(f"has {len(rungs)} levels", f"List at most {_MAX_RUNGS}.")
    reject(
        [
            Problem(
                loc=(index,),
                value=level,
                message=f"does not exceed the rung before it, which is {rungs[index - 1]}",
                remedy="List the rungs in increasing order, each one once.",
            )
            for index, level in enumerate(rungs)
            if index and level <= rungs[index - 1]
        ]
    )
    return rungs


Eta = Annotated[int, PlainValidator(integer_within(2, INT32_MAX))]
Brackets = Annotated[int, PlainValidator(integer_within(1, _MAX_BRACKETS))]
Rungs = Annotated[tuple[Steps, ...], AfterValidator(_increasing)]


class AshaPolicy(SpecModel):
    """Asynchronous successive halving (Li et al., arXiv 1810.05934).

    Either `rungs` lists the levels or they follow from `min_steps` (1 unless given), which is None exactly
    where `rungs` is given.
    """

    kind: Literal["asha"] = "asha"
    variant: AshaVariant = AshaVariant.PROMOTION
    eta: Eta = 3
    min_steps: Steps | None = None
    rungs: Rungs = ()
    brackets: Brackets = 1

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems: list[Problem] = []
        if self.min_steps is not None and self.rungs:
            problems.append(
                Problem(
                    loc=("min_steps",),
                    value=self.min_steps,
                    message="cannot be combined with rungs",
                    remedy="Remove one of the two: the first rung is the least number of steps.",
                )
            )
        reject(problems)
        if self.min_steps is None and not self.rungs:
            object.__setattr__(self, "min_steps", 1)  # still under construction
        return self

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones of bracket 0, the last of which is max_steps."""
        if self.rungs:
            return self.rungs
        levels: list[int] = []
        level = self.min_steps or 1
        while level < max_steps:
            levels.append(level)
            level *= self.eta
        return (*levels, max_steps)


Policy = Annotated[RunAllPolicy | AshaPolicy | PbtPolicy, Field(discriminator="kind")]


def ladder_problems(policy: Policy, max_steps: int) -> list[Problem]:
    """What is wrong between a policy and the full budget."""
    if isinstance(policy, PbtPolicy):
        return pbt_problems(policy, max_steps)
    if not isinstance(policy, AshaPolicy):
        return []
    if policy.rungs and policy.rungs[-1] != max_steps:
        return [
            Problem(
                loc=("policy", "rungs", len(policy.rungs) - 1),
                value=policy.rungs[-1],
                message=f"is the last rung, but the full budget is {max_steps} steps",
                remedy=f"End the list with {max_steps}, or change the budget.",
            )
        ]
    if policy.min_steps is not None and policy.min_steps > max_steps:
        return [
            Problem(
                loc=("policy", "min_steps"),
                value=policy.min_steps,
                message=f"is more than the full budget of {max_steps} steps",
                remedy=f"Choose at most {max_steps}.",
            )
        ]
    levels = len(policy.ladder(max_steps))
    if policy.brackets > levels:
        return [
            Problem(
                loc=("policy", "brackets"),
                value=policy.brackets,
                message=f"is more than there are rungs, which is {levels}",
                remedy=f"Choose at most {levels}: bracket s skips the first s rungs.",
            )
        ]
    return []
