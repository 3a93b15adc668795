"""Policies as a user names them. Each has its own model; the union below lists them."""

from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from headrace.spec.auto import AutoPolicy
from headrace.spec.domains import SpecModel
from headrace.spec.halving import AshaPolicy, HyperbandPolicy, PashaPolicy, SuccessiveHalvingPolicy
from headrace.spec.own import OwnPolicy
from headrace.spec.pbt import PbtPolicy, pbt_problems
from headrace.spec.problems import Problem
from headrace.spec.stopping import MedianPolicy, RungMedianPolicy


class RunAllPolicy(SpecModel):
    """Every trial runs to the full budget."""

    kind: Literal["run_all"] = "run_all"

    @property
    def pauses(self) -> bool:
        """Whether a trial may have to wait and continue later."""
        return False

    def ladder(self, max_steps: int) -> tuple[int, ...]:
        """The milestones of bracket 0."""
        return (max_steps,)

    def beyond(self, before: int, max_steps: int, *, first: int) -> tuple[int, ...]:
        """The milestones after a full budget that was extended."""
        del before, first
        return (max_steps,)

    def count_beyond(self, before: int, max_steps: int, *, first: int) -> int:
        """The number of milestones of `beyond`."""
        return len(self.beyond(before, max_steps, first=first))

    def problems(self, max_steps: int) -> list[Problem]:
        """No conflict is possible."""
        del max_steps
        return []


_Kinds = (
    AutoPolicy
    | RunAllPolicy
    | AshaPolicy
    | SuccessiveHalvingPolicy
    | HyperbandPolicy
    | PashaPolicy
    | MedianPolicy
    | RungMedianPolicy
    | PbtPolicy
    | OwnPolicy
)
Policy = Annotated[_Kinds, Field(discriminator="kind")]
POLICIES: Final[dict[str, type[SpecModel]]] = {
    model.model_fields["kind"].default: model for model in get_args(_Kinds)
}
"""Each kind and its model."""


def ladder_problems(policy: Policy, max_steps: int) -> list[Problem]:
    """Conflicts between a policy and the full budget."""
    if isinstance(policy, PbtPolicy):
        return pbt_problems(policy, max_steps)
    return policy.problems(max_steps)
