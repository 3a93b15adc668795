"""One scheduling cycle as one transaction: load, decide, apply.

The runner calls `run_cycle` for one cycle at a time of each study on a replica. The lock on the study's row orders
it with the cycles of other replicas. A cycle of reports makes two round trips to Postgres, and one more for each
question of `decide`. A cycle that places makes four, and more if other studies wait.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import HeadraceError, StudyNotFoundError
from headrace_services.scheduler import measures
from headrace_services.scheduler.core.decide import decide, named
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import Accepted, Outcome
from headrace_services.scheduler.core.plan import Effects
from headrace_services.scheduler.engine.submissions import Settled, Shown, Submission
from headrace_services.scheduler.engine.turns import Turn
from headrace_services.scheduler.samplers import make_sampler, points_of
from headrace_services.scheduler.store import requests, unseen
from headrace_services.scheduler.store.apply import apply
from headrace_services.scheduler.store.load import open_study, serve
from headrace_services.scheduler.store.rows import KnownSpec


class CycleResult(Struct, frozen=True, kw_only=True):
    """The result of a committed cycle."""

    settled: tuple[Settled, ...]
    effects: Effects
    fold: Fold | None


async def run_cycle(
    conn: AsyncConnection,
    study_id: int,
    submissions: Sequence[Submission],
    fold: Fold | None,
    turn: Turn | None = None,
) -> CycleResult:
    """Run one cycle in the transaction of `conn`, and commit it. If it fails, the caller drops the fold.

    The cycle takes its turn when it looks for slots; the caller gives it up.
    """
    asked = [submission.request for submission in submissions if submission.request is not None]
    first = named(submission.input for submission in submissions)
    known = KnownSpec(spec=fold.spec, revision=fold.revision) if fold else None
    opened = await open_study(conn, study_id, first, asked, known)
    study = opened.study
    if study is None:
        gone = Settled(outcome=StudyNotFoundError("the study was deleted"))
        effects = Effects(slots_left=True)
        return CycleResult(settled=(gone,) * len(submissions), effects=effects, fold=None)
    if fold is None or fold.revision != study.revision:
        fold = Fold.empty(
            study.spec, make_sampler(study.spec), revision=study.revision, points=points_of(study.spec)
        )
    if fold.cursor != study.cursor:
        await unseen.catch_up(conn, study_id, fold)
        fold.cursor = study.cursor
    fresh = [one for one in submissions if one.request is None or one.request.id not in opened.answers]
    deciding = decide(study, [submission.input for submission in fresh], fold, opened.rows)
    plan = await serve(conn, study_id, deciding, turn.acquire if turn else None)
    shown = Shown(study=plan.study, trials=plan.shown)
    settled = [_settle(one, outcome, shown) for one, outcome in zip(fresh, plan.outcomes, strict=True)]
    await apply(conn, plan, _to_remember(fresh, settled))
    measures.count_cycle(plan.changes, [one.input for one in fresh], plan.outcomes)
    fold.cursor = plan.study.cursor
    still_holds = plan.study.revision == fold.revision
    made = iter(settled)
    answered = tuple(
        _repeated(one.request, opened.answers)
        if one.request is not None and one.request.id in opened.answers
        else next(made)
        for one in submissions
    )
    return CycleResult(settled=answered, effects=plan.effects, fold=fold if still_holds else None)


def _settle(submission: Submission, outcome: Outcome | HeadraceError, shown: Shown) -> Settled:
    """The outcome of a submission, with the answer to its request."""
    if isinstance(outcome, HeadraceError):
        return Settled(outcome=outcome)
    try:
        response = submission.render(outcome, shown) if submission.render else None
    except HeadraceError as error:
        return Settled(outcome=error)
    return Settled(outcome=outcome, response=response)


def _to_remember(
    submissions: Sequence[Submission], settled: Sequence[Settled]
) -> list[tuple[requests.Request, bytes]]:
    return [
        (one.request, done.response)
        for one, done in zip(submissions, settled, strict=True)
        if one.request is not None and done.response is not None
    ]


def _repeated(request: requests.Request, answers: Mapping[str, requests.Answer]) -> Settled:
    """The first answer to a repeated request."""
    try:
        return Settled(outcome=Accepted(), response=requests.check_repeat(request, answers[request.id]))
    except HeadraceError as error:
        return Settled(outcome=error)
