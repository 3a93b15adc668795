"""What the calls have in common: finding what a name stands for, and changing it once.

`Calls.change` carries a change of an existing study into the study's steps; `once` runs a change that is a
transaction of its own. In both the answer is made inside the transaction and stored under the request's id.
"""

import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import grpc
import psycopg
from google.protobuf.message import Message
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.errors import HeadraceError, StudyNotFoundError, TrialNotFoundError
from headrace.v1 import study_pb2 as pb
from headrace.v1 import trial_pb2
from headrace_services.scheduler.arrivals import Command, ExitedArrived, Outcome, ReportArrived
from headrace_services.scheduler.hub import Hub
from headrace_services.scheduler.records import Study
from headrace_services.scheduler.rpc import convert
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.rpc.watching import Snapshots
from headrace_services.scheduler.step.submissions import Shown, Submission
from headrace_services.scheduler.store import requests, studies, trials
from headrace_services.scheduler.store.database import is_conflict, transaction
from headrace_services.scheduler.store.requests import Request
from headrace_services.scheduler.store.trials import TrialView

ATTEMPTS = 5
"""How often a transaction that lost against another one is tried again."""

MOST_KNOWN = 1024

Answer = Callable[[Study, Outcome, Shown], Awaitable[Message]]
Context = grpc.aio.ServicerContext[Any, Any]
Change = Command | ReportArrived | ExitedArrived


class Calls:
    """What every group of calls works with."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.snapshots = Snapshots(hub.engine)
        self._known: dict[str, Study] = {}
        """Studies by name, for what of them never changes."""

    def known(self, study_id: str) -> Study | None:
        """A study that was found here before, for what of it never changes; it may have been deleted since."""
        return self._known.get(study_id)

    async def change(
        self,
        request: Request | None,
        study_id: str,
        arrival: Callable[[Study], Change],
        answer: Answer,
        *,
        shows: Callable[[Outcome], Collection[int]] | None = None,
        lasting: bool = False,
    ) -> bytes:
        """Put a change into the study's next step. Returns the response, or the first one of a repeated request.

        `arrival` may refuse the request, given the study; `answer` makes the response, inside the step, and may show
        the trials that `shows` names. A request without an id gets one here: a step whose commit got through, but not
        the word of it, is run again. With `lasting` both look only at what of a study never changes, which is known
        from the first call on, and at those trials.
        """
        assert lasting or shows is not None, "an answer that shows the study as it is now shows rows"
        once_only = request or Request(id=f"call-{secrets.token_hex(16)}", method="", digest=b"")
        study = self.known(study_id) if lasting else None
        if study is not None:
            try:
                return await self._submit(study, once_only, arrival, answer, shows, lasting=True)
            except StudyNotFoundError:  # deleted; perhaps there is another one of this name
                self._known.pop(study_id, None)
        try:
            async with transaction(self.hub.engine) as conn:
                study = await find_study(conn, study_id)
        except StudyNotFoundError:
            first = await _answered(self.hub.engine, request)
            if first is not None:
                return first
            raise
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[study_id] = study
        return await self._submit(study, once_only, arrival, answer, shows, lasting=lasting)

    async def _submit(
        self,
        study: Study,
        request: Request,
        arrival: Callable[[Study], Change],
        answer: Answer,
        shows: Callable[[Outcome], Collection[int]] | None,
        *,
        lasting: bool,
    ) -> bytes:
        async def respond(outcome: Outcome, shown: Shown) -> bytes:
            now: Study | None = study
            if not lasting:
                now = await studies.get(shown.conn, study.id)
            if now is None:
                raise StudyNotFoundError(f"study '{study.name}' was deleted")
            return (await answer(now, outcome, shown)).SerializeToString()

        submission = Submission(
            arrival=arrival(study), request=request, respond=respond, shows=shows, early=lasting
        )
        settled = await self.hub.submit(study.id, submission)
        assert settled.response is not None, "submit raises what was refused"
        return settled.response


def identify(message: Message, request_id: str) -> Request | None:
    """The identity of a mutating request: its id, and all of it but its id."""
    content = type(message)()
    content.CopyFrom(message)
    content.ClearField("request_id")
    return requests.identify(content, request_id)


async def once(
    engine: AsyncEngine, request: Request | None, work: Callable[[AsyncConnection], Awaitable[Message]]
) -> bytes:
    """Do some work in a transaction of its own. Returns the response, or the first one of a repeated request.

    The work looks for what stands in its way before it writes: where it loses a race against another replica,
    it is run again and finds what the other one did. What it finds in its way may be the work of the same request,
    which committed a moment ago; so a refusal counts only when the request has no answer by then.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with transaction(engine) as conn:
                first = (await requests.answered(conn, [request])).get(request.id) if request else None
                if request and first:
                    return requests.check_repeat(request, first)
                response = (await work(conn)).SerializeToString()
                if request:
                    await requests.remember(conn, request, response)
                return response
        except HeadraceError:
            answer = await _answered(engine, request)
            if answer is not None:
                return answer
            raise
        except Exception as error:
            lost = isinstance(error, (IntegrityError, psycopg.IntegrityError)) or is_conflict(error)
            if not lost or attempt == ATTEMPTS:
                raise
    raise AssertionError("the loop ends by returning or raising")


async def _answered(engine: AsyncEngine, request: Request | None) -> bytes | None:
    """What a request was answered with before, if it was. Raises RequestIdReusedError."""
    if request is None:
        return None
    async with transaction(engine) as conn:
        first = (await requests.answered(conn, [request])).get(request.id)
    return requests.check_repeat(request, first) if first else None


async def find_study(conn: AsyncConnection, study_id: str, *, lock: bool = False) -> Study:
    """The study of a name; raises StudyNotFoundError."""
    study = await studies.find(conn, study_id, lock=lock)
    if study is None:
        raise StudyNotFoundError(f"there is no study '{study_id}'")
    return study


async def study_message(conn: AsyncConnection, study: Study) -> pb.Study:
    """A study with its status."""
    return convert.study(study, (await studies.figures(conn, [study]))[study.id])


async def require_trial(conn: AsyncConnection, study: Study, number: int) -> TrialView:
    """A trial with its rungs; raises TrialNotFoundError."""
    view = await trials.one(conn, study.id, number)
    if view is None:
        raise TrialNotFoundError(f"study '{study.name}' has no trial {number}")
    return view


def shown_trial(study: Study, shown: Shown, number: int) -> trial_pb2.Trial:
    """A trial as a step leaves it, with its rungs; raises TrialNotFoundError."""
    view = shown.trials.get(number)
    if view is None:
        raise TrialNotFoundError(f"study '{study.name}' has no trial {number}")
    return convert.trial(study.name, view, study.spec)


async def trial_message(conn: AsyncConnection, study: Study, number: int) -> trial_pb2.Trial:
    """A trial with its rungs and with what it waits for; raises TrialNotFoundError."""
    view = await require_trial(conn, study, number)
    waiting = await waits_for(conn, study, [view.trial])
    return convert.trial(study.name, view, study.spec, waits_for=waiting.get(number, ""))
