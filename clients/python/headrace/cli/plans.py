"""What is shown about a transfer's plan: while a planner is asked, by `run` at creation, and in summaries."""

from headrace.cli.output import Output
from headrace.client import transfer_plan
from headrace.client.model import StudyInfo
from headrace.spec import StudySpec, TrialPlan


def planned(spec: StudySpec, output: Output, planner: str | None) -> StudySpec:
    """The spec with the answer for its plan; asks the planner if there is none yet. Raises HeadraceError."""
    if spec.open_plan is None:
        return spec
    with output.status("planning the target") as say:
        return transfer_plan.planned(spec, planner, lambda now: say(str(now)))


def plan_of(spec: StudySpec) -> TrialPlan | None:
    """The plan for a study's trials, or for those of the study that follows it; None without one."""
    if spec.template is not None and spec.template.plan is not None:
        return spec.template.plan
    return spec.plan.answer if spec.plan is not None else None


def lines_of(study: StudyInfo) -> list[tuple[str, str]]:
    """The plan, for a summary."""
    plan = plan_of(study.spec)
    if plan is None:
        return []
    return [("plan" if study.spec.plan is None else "target's plan", str(plan))]
