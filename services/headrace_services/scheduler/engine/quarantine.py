"""How the inputs of a quarantined study are answered: as those of a study that has ended.

This does not read the study's own rows. A worker's message is stale, so the worker lets go of the trial and drops
the message. A stop is accepted, and its answer shows what can be shown of the study. Every other command is
refused with the reason.
"""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import HeadraceError, StudyEndedError, StudyNotFoundError
from headrace_services.scheduler.core.inputs import (
    Accepted,
    AfterEnded,
    Cancellation,
    Input,
    Leased,
    Outcome,
    PlaceNow,
    ProposalsOver,
    Proposed,
    Stale,
    StopStudy,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.plan import Effects
from headrace_services.scheduler.engine.cycle import CycleResult
from headrace_services.scheduler.engine.submissions import Settled, Shown, Submission
from headrace_services.scheduler.store import quarantine, requests
from headrace_services.scheduler.store.quarantine import Brief


async def run(
    conn: AsyncConnection, study_id: int, why: str, submissions: Sequence[Submission], *, first: bool
) -> CycleResult:
    """Quarantine the study and answer. Unless it is the `first` time on this replica, no one is notified of what
    ended."""
    done = await quarantine.quarantine(conn, study_id, why)
    if done is None:
        gone = Settled(outcome=StudyNotFoundError("the study was deleted"))
        return CycleResult(settled=(gone,) * len(submissions), effects=Effects(slots_left=first), fold=None)
    answers = [await _answered(conn, done.study, submission) for submission in submissions]
    orders = tuple(
        Cancellation(worker_id=lease.worker_id, lease=lease, reason=done.study.detail)
        for lease in done.leases
        if lease.worker_id is not None
    )
    effects = Effects(orders=orders, slots_left=first or bool(orders))
    return CycleResult(settled=tuple(answers), effects=effects, fold=None)


async def _answered(conn: AsyncConnection, study: Brief, submission: Submission) -> Settled:
    request = submission.request
    if request is not None and (known := await requests.answered(conn, [request])):
        try:
            return Settled(outcome=Accepted(), response=requests.check_repeat(request, known[request.id]))
        except HeadraceError as error:
            return Settled(outcome=error)
    outcome = _outcome(study, submission.input)
    if submission.render is None or isinstance(outcome, HeadraceError):
        return Settled(outcome=outcome)
    try:
        response = submission.render(outcome, Shown(study=study))
    except HeadraceError as error:
        return Settled(outcome=error)
    if request is not None:
        await requests.remember(conn, request, response)
    return Settled(outcome=outcome, response=response)


def _outcome(study: Brief, one: Input) -> Outcome | HeadraceError:
    match one:
        case Leased():
            return Stale(why=f"study '{study.name}' has ended ({study.state.lower()}: {study.detail})")
        case Suggest():
            return Suggested(trial=None, lease=None, done=True)
        case PlaceNow() | Proposed() | ProposalsOver() | AfterEnded() | StopStudy():
            return Accepted()
        case _:
            return StudyEndedError(f"study '{study.name}' has ended ({study.state.lower()}): {study.detail}")
