"""What the calls have in common: finding what a name stands for, and changing it once.

`Calls.change` carries a change of an existing study into the study's steps; `once` runs a change that is a
transaction of its own. In both the answer is made inside the transaction and stored under the request's id.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import grpc
import psycopg
from google.protobuf.message import Message
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.errors import HeadraceError, StudyNotFoundError, TrialNotFoundError
from headrace.v1 import study_pb2 as pb
from headrace.v1 import trial_pb2
from headrace_services.scheduler.arrivals import Command, ExitedArrived, Outcome, ReportArrived
from headrace_services.scheduler.desk import SMALL_FRONT, Desk
from headrace_services.scheduler.hub import Hub
from headrace_services.scheduler.records import Study
from headrace_services.scheduler.rpc import convert, pages
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.rpc.watching import Snapshots
from headrace_services.scheduler.samplers.front import front
from headrace_services.scheduler.step.submissions import Shown, Submission
from headrace_services.scheduler.store import aside, requests, studies, trials
from headrace_services.scheduler.store.aside import Brief
from headrace_services.scheduler.store.database import is_conflict, transaction
from headrace_services.scheduler.store.defects import Defect, is_transient, reason_of
from headrace_services.scheduler.store.requests import Request
from headrace_services.scheduler.store.trials import TrialView

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a transaction that lost against another one is tried again."""

MOST_KNOWN = 256

Found = TypeVar("Found", Study, Brief)
_Found = tuple[Study, studies.Figures]
Answer = Callable[[Study, Outcome, Shown], Awaitable[Message]]
Context = grpc.aio.ServicerContext[Any, Any]
Change = Command | ReportArrived | ExitedArrived


class Calls:
    """What every group of calls works with."""

    def __init__(self, hub: Hub, desk: Desk) -> None:
        self.hub = hub
        self.desk = desk
        self.snapshots = Snapshots(partial(whole_study, hub.engine, desk))
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
        once_only = request or _request_of_this_call()
        study = self.known(study_id) if lasting else None
        if study is not None:
            try:
                return await self._submit(study, once_only, arrival, answer, shows, lasting=True)
            except StudyNotFoundError:  # deleted; perhaps there is another one of this name
                self._known.pop(study_id, None)
        found = await self._find(request, partial(find_study, study_id=study_id))
        if isinstance(found, bytes):
            return found
        self._known.pop(study_id, None)
        self._known[study_id] = found
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return await self._submit(found, once_only, arrival, answer, shows, lasting=lasting)

    async def order(
        self,
        request: Request | None,
        study_id: str,
        command: Command,
        answer: Callable[[AsyncConnection, int], Awaitable[Message]],
    ) -> bytes:
        """Put a command about the study itself into its next step. Returns as `change` does.

        It works for a study whose row cannot be read, too: nothing of it is read but its id.
        """
        found = await self._find(request, partial(find_brief, study_id=study_id))
        if isinstance(found, bytes):
            return found

        async def respond(outcome: Outcome, shown: Shown) -> bytes:  # noqa: ARG001  # a Respond
            return (await answer(shown.conn, found.id)).SerializeToString()

        submission = Submission(
            arrival=command,
            request=request or _request_of_this_call(),
            respond=respond,
            shows=lambda _: (),
        )
        settled = await self.hub.submit(found.id, submission)
        assert settled.response is not None, "submit raises what was refused"
        return settled.response

    async def _find(
        self, request: Request | None, find: Callable[[AsyncConnection], Awaitable[Found]]
    ) -> Found | bytes:
        """The study, or what the request was answered with while there was one. Raises StudyNotFoundError."""
        try:
            async with transaction(self.hub.engine) as conn:
                return await find(conn)
        except StudyNotFoundError:
            first = await _answered(self.hub.engine, request)
            if first is not None:
                return first
            raise

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


def _request_of_this_call() -> Request:
    return Request(id=f"call-{secrets.token_hex(16)}", method="", digest=b"")


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


async def find_study(conn: AsyncConnection, study_id: str) -> Study:
    """The study of a name; raises StudyNotFoundError, and StudyDefectError where its row cannot be read."""
    study = await studies.find(conn, study_id)
    if study is None:
        raise StudyNotFoundError(f"there is no study '{study_id}'")
    return study


async def find_brief(conn: AsyncConnection, study_id: str, *, lock: bool = False) -> Brief:
    """What can be said of every study; raises StudyNotFoundError."""
    study = await aside.brief(conn, name=study_id, lock=lock)
    if study is None:
        raise StudyNotFoundError(f"there is no study '{study_id}'")
    return study


async def study_message(conn: AsyncConnection, study_id: int) -> pb.Study:
    """A study with its status, in the transaction of a change; a large front is left out of it.

    Of a study that cannot be shown, or is too large to be, what can be said of every study. Raises StudyNotFoundError.
    """
    found = await _read(conn, study_id)
    if not isinstance(found, Defect) and (measured := found[1].measured):
        if len(measured) <= SMALL_FRONT:
            places = front([vector for _, vector in measured], _signs(found[0]))
            await _add_front(conn, found, places)
        else:
            found[1].unshown = "the front is left out: GetStudy has it"
    return await _render(conn, study_id, found)


async def whole_study(engine: AsyncEngine, desk: Desk, study_id: int) -> pb.Study:
    """A study with its status. No transaction is open while its front is found. Raises as `study_message`."""
    async with transaction(engine) as conn:
        found = await _read(conn, study_id)
        if isinstance(found, Defect) or not found[1].measured:
            return await _render(conn, study_id, found)
    try:
        places = await desk.front([vector for _, vector in found[1].measured], _signs(found[0]))
    except HeadraceError as error:
        places, found[1].unshown = [], f"the front is left out: {error.message}"
    async with transaction(engine) as conn:
        await _add_front(conn, found, places)
        return await _render(conn, study_id, found)


def _signs(study: Study) -> list[float]:
    return [objective.sign for objective in study.spec.objectives]


async def _read(conn: AsyncConnection, study_id: int) -> "_Found | Defect":
    try:
        async with conn.begin_nested():
            study = await studies.get(conn, study_id)
            if study is not None:
                return study, (await studies.figures(conn, [study], whole=True))[study.id]
    except Exception as error:
        if is_transient(error):
            raise
        log.warning("study %s cannot be shown", study_id, exc_info=True)
        return Defect(reason_of(error))
    return Defect("it was deleted")


async def _add_front(conn: AsyncConnection, found: "_Found", places: Sequence[int]) -> None:
    try:
        async with conn.begin_nested():
            await studies.add_front(conn, *found, places)
    except Exception as error:
        if is_transient(error):
            raise
        log.warning("the front of study '%s' cannot be shown", found[0].name, exc_info=True)
        found[1].unshown = f"the front is left out: {reason_of(error)}"


async def _render(conn: AsyncConnection, study_id: int, found: "_Found | Defect") -> pb.Study:
    message = pages.shown(found, lambda whole: convert.study(*whole))
    if not isinstance(message, Defect):
        return message
    brief = await aside.brief(conn, study_id=study_id)
    if brief is None:
        raise StudyNotFoundError("the study was deleted")
    return convert.bare_study(brief, message.reason)


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
