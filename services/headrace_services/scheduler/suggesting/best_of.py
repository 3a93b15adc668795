"""Read what the next configuration depends on in a study whose sampler is `best_of` another one (`core.best_of`)."""

from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import BestOfSampler
from headrace.spec.space import admitted, assignment_problems
from headrace_services.scheduler.core import best_of
from headrace_services.scheduler.core.inputs import ProposalsOver, Proposed
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.records import Study
from headrace_services.scheduler.store import placement, proposals


async def next_of_best(
    conn: AsyncConnection, study: Study, sampler: BestOfSampler
) -> Proposed | ProposalsOver | None:
    """The best configuration of the other study that this one has not had; None if it cannot be taken yet.

    While no slot is free, no configuration for an idle slot is requested, because the cycle would drop it.
    """
    source = await proposals.source(conn, study.project, sampler.study)
    turn = None if source is None else best_of.turn(study, sampler, source)
    found = beside = None
    if source is not None and turn is not None:
        if turn.if_idle:
            if not await _any_free(conn, study):
                return None
            beside = await _next_request(conn, source.id)
        found = await proposals.best_left(conn, source.id, study.id, maximize=study.spec.maximizes())
    if found is not None:
        space = study.spec.space
        problem = next(assignment_problems(found.params, space, space), None)
        if problem is not None:
            at = f"trial {found.number} of study '{sampler.study}'"
            return best_of.over(study, f"{at} does not fit the space: {problem.violation()}")
        found = replace(found, params=admitted(space, found.params))
    return best_of.next_of_best(study, sampler, source, found, beside)


async def _any_free(conn: AsyncConnection, study: Study) -> bool:
    request = Request.of(study.spec.resources.each[0], study.standing.avoided)
    return await placement.any_free(conn, request)


async def _next_request(conn: AsyncConnection, study_id: int) -> Request | None:
    """The request of a study's next new trial."""
    standing = await proposals.standing(conn, study_id)
    return None if standing is None else best_of.next_request(standing.study, standing.live)
