"""Rung levels: geometric ones, even ones, or the user's own list; shared by the policies.

Geometric levels are found by multiplying integers, never with logarithms of floats: 243/1 with η=3 has the six
levels 1, 3, 9, 27, 81, 243. If no min_steps·η^k equals max_steps, the ladder is every level below max_steps and
then max_steps itself: 100/1 with η=3 has 1, 3, 9, 27, 81, 100. So the levels are where the user expects them,
and every trial that completes has used the full budget.
"""

from typing import Annotated, Final, Self

from pydantic import AfterValidator, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.scalars import Flag, Steps, integer_within

DEFAULT_INTERVALS: Final = 100
"""How often an evenly spaced rule checks a trial by default."""


def _increasing(rungs: tuple[int, ...]) -> tuple[int, ...]:
    if len(rungs) > numbers.RUNGS:
        raise fault(f"has {len(rungs)} levels", f"List at most {numbers.RUNGS}.")
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


Eta = Annotated[int, PlainValidator(integer_within(2, numbers.ETA))]
Rungs = Annotated[tuple[Steps, ...], AfterValidator(_increasing)]


def geometric(min_steps: int, eta: int, max_steps: int) -> tuple[int, ...]:
    """The levels min_steps·η^k below max_steps, and max_steps."""
    levels: list[int] = []
    level = min_steps
    while level < max_steps:
        levels.append(level)
        level *= eta
    return (*levels, max_steps)


def from_the_top(min_steps: int, eta: int, max_steps: int) -> tuple[int, ...]:
    """max_steps / η^k, rounded, down to twice min_steps, and min_steps itself: 50/1 with η=3 has 1, 2, 6, 17, 50.

    The remainder of the division is in the gap above the first rung, where a step costs least.
    """
    levels: list[int] = [max_steps] if max_steps > min_steps else []
    power = eta
    while (level := (2 * max_steps + power) // (2 * power)) >= 2 * min_steps:
        levels.append(level)
        power *= eta
    return (min_steps, *reversed(levels)) if levels else (max_steps,)


def further(interval: int | None, every: int, before: int, max_steps: int) -> range:
    """The even levels between a full budget and a larger one. A default interval grows with the budget."""
    if interval is None:
        every = max(every, -(-(max_steps - before) // DEFAULT_INTERVALS))
    return range(before - before % every + every, max_steps, every)


def listed_problems(rungs: tuple[int, ...], max_steps: int) -> list[Problem]:
    """Conflicts between a user's list and the full budget."""
    if not rungs or rungs[-1] == max_steps:
        return []
    return [
        Problem(
            loc=("policy", "rungs", len(rungs) - 1),
            value=rungs[-1],
            message=f"is the last rung, but the full budget is {max_steps} steps",
            remedy=f"End the list with {max_steps}, or change the budget.",
        )
    ]


class GeometricPolicy(SpecModel):
    """A policy whose rungs grow by η.

    Either `rungs` lists the levels or they follow from `min_steps` (default 1), which is None exactly if `rungs`
    is given.
    """

    eta: Eta = 3
    min_steps: Steps | None = None
    rungs: Rungs = ()
    price_pauses: Flag = False

    @model_validator(mode="after")
    def _one_kind_of_rungs(self) -> Self:
        if self.min_steps is not None and self.rungs:
            reject(
                [
                    Problem(
                        loc=("min_steps",),
                        value=self.min_steps,
                        message="cannot be combined with rungs",
                        remedy="Remove one of the two: the first rung is the least number of steps.",
                    )
                ]
            )
        if self.min_steps is None and not self.rungs:
            object.__setattr__(self, "min_steps", 1)  # still under construction
        return self

    @property
    def pauses(self) -> bool:
        """Whether a trial may have to wait and continue later."""
        return True

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones of bracket 0, the last of which is max_steps."""
        return self.rungs or geometric(self.min_steps or 1, self.eta, max_steps)

    def beyond(self, before: int, max_steps: int, *, first: int) -> tuple[int, ...]:
        """The milestones after a full budget that was extended: each η times the previous one, and max_steps."""
        del first
        return geometric(before, self.eta, max_steps)[1:]

    def count_beyond(self, before: int, max_steps: int, *, first: int) -> int:
        """The number of milestones of `beyond`, which is small for any budget."""
        return len(self.beyond(before, max_steps, first=first))

    def problems(self, max_steps: int) -> list[Problem]:
        """What is wrong between the policy and the full budget."""
        if self.rungs:
            return listed_problems(self.rungs, max_steps)
        if self.min_steps is None or self.min_steps <= max_steps:
            return []
        return [
            Problem(
                loc=("policy", "min_steps"),
                value=self.min_steps,
                message=f"is more than the full budget of {max_steps} steps",
                remedy=f"Choose at most {max_steps}.",
            )
        ]


class EvenPolicy(SpecModel):
    """A policy that checks every trial every `interval` steps (None: a hundredth of the budget), or at `rungs`."""

    interval: Steps | None = None
    rungs: Rungs = ()
    grace_steps: Steps | None = None

    @model_validator(mode="after")
    def _one_kind_of_rungs(self) -> Self:
        if self.interval is not None and self.rungs:
            reject(
                [
                    Problem(
                        loc=("interval",),
                        value=self.interval,
                        message="cannot be combined with rungs",
                        remedy="Remove one of the two.",
                    )
                ]
            )
        return self

    @property
    def pauses(self) -> bool:
        """Whether a trial may have to wait and continue later. It does not: it is stopped, or continues at once."""
        return False

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones: the rungs, or the multiples of the interval below max_steps, and max_steps."""
        every = self.every(max_steps)
        return self.rungs or (*range(every, max_steps, every), max_steps)

    def beyond(self, before: int, max_steps: int, *, first: int) -> tuple[int, ...]:
        """The milestones after a full budget that was extended: as far apart as before, or farther for a default
        interval, so that they stay few. After a list of rungs there is only max_steps.
        """
        return (*self._between(before, max_steps, first), max_steps)

    def count_beyond(self, before: int, max_steps: int, *, first: int) -> int:
        """The number of milestones of `beyond`, without listing them."""
        return len(self._between(before, max_steps, first)) + 1

    def _between(self, before: int, max_steps: int, first: int) -> range:
        if self.rungs:
            return range(0)
        return further(self.interval, self.every(first), before, max_steps)

    def every(self, max_steps: int) -> int:
        """The steps between two checks."""
        return self.interval or -(-max_steps // DEFAULT_INTERVALS)

    def grace(self, max_steps: int) -> int:
        """The first step at which a trial may be stopped: by default a tenth of the budget."""
        return self.grace_steps or -(-max_steps // 10)

    def problems(self, max_steps: int) -> list[Problem]:
        """What is wrong between the policy and the full budget."""
        found = listed_problems(self.rungs, max_steps)
        if not self.rungs and -(-max_steps // self.every(max_steps)) > numbers.RUNGS:
            found.append(
                Problem(
                    loc=("policy", "interval"),
                    value=self.interval,
                    message=f"makes more than {numbers.RUNGS} rungs in {max_steps} steps",
                    remedy=f"Choose at least {-(-max_steps // numbers.RUNGS)}.",
                )
            )
        if self.grace_steps is not None and self.grace_steps > max_steps:
            found.append(
                Problem(
                    loc=("policy", "grace_steps"),
                    value=self.grace_steps,
                    message=f"is more than the full budget of {max_steps} steps, so no trial would ever be stopped",
                    remedy=f"Choose at most {max_steps}.",
                )
            )
        return found
