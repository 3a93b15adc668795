"""What becomes of the arrivals for a study that is set aside: what a study that has ended answers.

The study's own rows are not read for it. A worker's message is stale, so that the worker lets go of the trial and
forgets the message. A stop is accepted, with what can be shown of the study. Every other command is refused with the
reason.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import HeadraceError, InternalError, StudyEndedError, StudyNotFoundError
from headrace_services.scheduler.arrivals import (
    Accepted,
    Arrival,
    Cancellation,
    Kick,
    Leased,
    Outcome,
    Proposed,
    Stale,
    StopStudy,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.step.submissions import Settled, Shown, Submission
from headrace_services.scheduler.step.transaction import StepResult
from headrace_services.scheduler.store import aside, requests
from headrace_services.scheduler.store.aside import Brief
from headrace_services.scheduler.store.defects import is_transient, reason_of


async def run(
    conn: AsyncConnection, study_id: int, why: str, submissions: Sequence[Submission], *, first: bool
) -> StepResult:
    """Set the study aside and answer. Unless it is the `first` time here, nobody is told of what ended then."""
    done = await aside.set_aside(conn, study_id, why)
    gone = StudyNotFoundError("the study was deleted")
    if done is None:
        settled = tuple(Settled(outcome=gone) for _ in submissions)
        return StepResult(settled=settled, orders=(), cache=None, cursor=0, slots_left=first, again=False)
    answers = [await _answered(conn, done.study, submission) for submission in submissions]
    orders = tuple(
        Cancellation(worker_id=lease.worker_id, lease=lease, reason=done.study.detail)
        for lease in done.leases
        if lease.worker_id is not None
    )
    return StepResult(
        settled=tuple(answers),
        orders=orders,
        cache=None,
        cursor=done.study.cursor,
        slots_left=first or bool(orders),
        again=False,
    )


async def holds(conn: AsyncConnection, study_id: int, arrival: Leased) -> bool:
    """Whether an arrival speaks for a live lease of the study."""
    return await aside.holds(conn, study_id, arrival.lease_id, arrival.number, arrival.epoch)


async def _answered(conn: AsyncConnection, study: Brief, submission: Submission) -> Settled:
    request = submission.request
    if request is not None and (known := await requests.answered(conn, [request])):
        try:
            return Settled(outcome=Accepted(), response=requests.check_repeat(request, known[request.id]))
        except HeadraceError as error:
            return Settled(outcome=error)
    outcome = _outcome(study, submission.arrival)
    if submission.respond is None or isinstance(outcome, HeadraceError):
        return Settled(outcome=outcome)
    try:
        async with conn.begin_nested():
            response = await submission.respond(outcome, Shown(conn=conn, trials={}))
    except HeadraceError as error:
        return Settled(outcome=error)
    except Exception as error:
        if is_transient(error):
            raise
        return Settled(outcome=InternalError(f"the scheduler failed on this: {reason_of(error)}"))
    if request is not None:
        await requests.remember(conn, request, response)
    return Settled(outcome=outcome, response=response)


def _outcome(study: Brief, arrival: Arrival) -> Outcome | HeadraceError:
    match arrival:
        case Leased():
            return Stale()
        case Suggest():
            return Suggested(trial=None, lease=None, done=True)
        case Kick() | Proposed() | StopStudy():
            return Accepted()
        case _:
            return StudyEndedError(f"study '{study.name}' has ended ({study.state.lower()}): {study.detail}")
