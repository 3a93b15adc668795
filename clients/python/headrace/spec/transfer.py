"""Transfer: a second study trains the best configurations of a first one on something larger.

The second study is an ordinary one, `NAME-target`, whose sampler is `best_of` the first. It has the same
objective, constraints and space, and trains each configuration to the end of its own budget.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import Field

from headrace.spec.domains import SpecModel
from headrace.spec.plan import TransferPlan, plan_problems
from headrace.spec.problems import Problem
from headrace.spec.resources import Resources
from headrace.spec.sampler import BestOfSampler, Eager, eager_problems
from headrace.spec.scalars import Count, Steps, Text
from headrace.spec.template import TrialTemplate

SUFFIX: Final = "-target"


class Transfer(SpecModel):
    """How the best configurations are trained."""

    callable: Text
    top: Count = 3
    eager: Eager | None = None
    steps: Steps | None = None
    resources: Resources = Field(default_factory=Resources)
    plan: TransferPlan | None = None

    def study_name(self, name: str) -> str:
        """The name of the study that follows a study of this name."""
        return f"{name}{SUFFIX}"

    def without_files(self) -> "Transfer":
        """The same without the files of its plan, which are only for the second study."""
        if self.plan is None or self.plan.answer is None:
            return self
        answer = self.plan.answer.model_copy(update={"files": {}})
        return self.model_copy(update={"plan": self.plan.model_copy(update={"answer": answer})})

    def fields(self, name: str, template: TrialTemplate) -> dict[str, Any]:
        """The fields in which the second study differs from the first, whose name is given."""
        plan = self.plan.answer if self.plan is not None else None
        return {
            "sampler": BestOfSampler(study=name, eager=self.eager).model_dump(),
            "policy": {"kind": "run_all"},
            "template": {**template.model_dump(), "callable": self.callable, "plan": plan},
            "resources": self.resources.model_dump(),
            "max_trials": self.top,
            **({} if self.steps is None else {"max_steps": self.steps}),
        }


def transfer_problems(transfer: Transfer, known: Mapping[str, Any]) -> Iterator[Problem]:
    """Conflicts between `transfer` and the study's other valid fields."""
    template: TrialTemplate | None = known.get("template")
    if "template" in known and (template is None or template.callable is None):
        yield Problem(
            loc=("transfer",),
            message="needs a trial that is a callable, beside which its own one lies",
            remedy="Name a function: trial: {callable: train:train}.",
        )
    if transfer.plan is not None:
        for problem in plan_problems(transfer.plan, transfer.resources):
            yield problem.under("transfer")
    if known.get("further_objectives"):
        yield Problem(
            loc=("transfer",),
            message="takes the best configurations, and with several objectives there is no best one",
            remedy="Leave out transfer, or all objectives but one.",
        )
    yield from eager_problems(transfer.eager, transfer.top, ("transfer", "eager"), "top")
    most = known.get("max_trials")
    if most is not None and transfer.top > most:
        yield Problem(
            loc=("transfer", "top"),
            value=transfer.top,
            message=f"is more than the {most} configurations that are tried",
            remedy="Raise the number of trials, or take fewer of the best.",
        )
