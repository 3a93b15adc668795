"""The importance of a study's parameters, for a page or a command that is shown in any case."""

from headrace.client.model import Importance, StudyInfo
from headrace.client.sync import Study
from headrace.errors import HeadraceError


def importance_or_reason(study: Study, info: StudyInfo) -> tuple[Importance, ...]:
    """The result of `Study.importance`; if it fails, the reason takes its place."""
    try:
        return study.importance()
    except HeadraceError as error:
        reason = f"it cannot be measured: {error.message}"
        return tuple(
            Importance(metric=one.metric, step=0, trials=0, parameters=(), reason=reason)
            for one in info.spec.objectives
        )


def about(found: Importance) -> str:
    """`among the best by loss, of the 27 trials that reached step 9`: what the shares refer to."""
    return f"among the best by {found.metric}, of the {found.trials} trials that reached step {found.step}"
