"""The next configuration of a study whose sampler is `best_of` another study."""

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import BestOfSampler
from headrace.spec.space import admitted, assignment_problems
from headrace_services.scheduler.core.inputs import ProposalsOver, Proposed
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.records import Proposal, Study
from headrace_services.scheduler.store import proposals


async def next_of_best(
    conn: AsyncConnection, study: Study, sampler: BestOfSampler
) -> Proposed | ProposalsOver | None:
    """The best configuration of the other study that this one has not had; None: not yet."""
    source = await proposals.source(conn, sampler.study)
    if source is None:
        return _over(study, f"study '{sampler.study}', whose best configurations it takes, was deleted")
    if not (source.state is StudyState.COMPLETED or _is_early(source, study, sampler)):
        if not source.state.ended:
            return None
        why = f" ({source.detail})" if source.detail else ""
        how = source.state.lower()
        return _over(
            study, f"study '{sampler.study}', whose best configurations it takes, {_ENDED[how]}{why}"
        )
    found = await proposals.best_left(conn, source.id, study.id, maximize=study.spec.maximizes())
    if found is None:
        done = source.state.ended
        return _over(study, f"study '{sampler.study}' has no further sound result") if done else None
    problem = next(assignment_problems(found.params, study.spec.space, study.spec.space), None)
    if problem is not None:
        words = problem.violation()
        return _over(
            study, f"trial {found.number} of study '{sampler.study}' does not fit the space: {words}"
        )
    proposal = Proposal(sampler=sampler.kind, results=source.ended, source=found.number)
    return Proposed(index=study.sampled, params=admitted(study.spec.space, found.params), proposal=proposal)


_ENDED = {"stopped": "was stopped", "failed": "failed"}


def _is_early(source: proposals.Source, study: Study, sampler: BestOfSampler) -> bool:
    """Whether the first trial may begin before the other study's end."""
    if sampler.eager is None or source.state is not StudyState.ACTIVE or study.sampled:
        return False
    return source.ended >= sampler.eager * source.planned > 0


def _over(study: Study, why: str) -> ProposalsOver:
    return ProposalsOver(index=study.sampled, why=why)
