"""The common part of the calls: finding what a name refers to, and changing it once.

`Calls.change` puts a change of an existing study into the study's cycles; `once` runs a change that is a
transaction of its own. In both cases the answer is stored under the request's id, in the transaction that makes
the change.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.errors import HeadraceError, StudyNotEndedError, StudyNotFoundError, TrialNotFoundError
from headrace.v1 import study_pb2 as pb
from headrace.v1 import trial_pb2
from headrace_services.scheduler.analysis import AnalysisPools
from headrace_services.scheduler.core.inputs import Command, ExitedArrived, Outcome, Renewed, ReportArrived
from headrace_services.scheduler.core.records import Study, TrialView
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.janitor import Janitor
from headrace_services.scheduler.engine.submissions import Shown, Submission
from headrace_services.scheduler.rpc import convert, pages
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.rpc.watching import Snapshots
from headrace_services.scheduler.store import load, quarantine, requests, studies, trials
from headrace_services.scheduler.store.database import is_conflict, is_overtaken, transaction
from headrace_services.scheduler.store.defects import Defect, is_transient, reason_of
from headrace_services.scheduler.store.quarantine import Brief
from headrace_services.scheduler.store.requests import Request

log = logging.getLogger(__name__)

ATTEMPTS = 5
"""How often a transaction that lost against another one is retried."""

MOST_KNOWN = 256

Found = TypeVar("Found", Study, Brief)
_Found = tuple[Study, studies.Figures]
Answer = Callable[[Outcome, Shown], Message]
Context = grpc.aio.ServicerContext[Any, Any]
Change = Command | ReportArrived | ExitedArrived | Renewed


class Calls:
    """The base of every group of calls."""

    def __init__(self, hub: Hub, analysis: AnalysisPools, janitor: Janitor | None = None) -> None:
        self.hub = hub
        self.analysis = analysis
        self.janitor = janitor or Janitor(hub.engine)
        self.snapshots = Snapshots(hub.engine, partial(whole_study, hub.engine, analysis))
        self._known: dict[tuple[str, str], Study] = {}
        """Studies by project and name, for the parts of them that never change."""

    def known(self, study_id: str) -> Study | None:
        """A study of the caller's project that was found here before, for the parts of it that never change; it
        may have been deleted since."""
        return self._known.get((caller().project, study_id))

    async def change(
        self, request: Request | None, study_id: str, command: Callable[[Study], Change], answer: Answer
    ) -> bytes:
        """Put a change into the study's next cycle. Returns the response, or the first one of a repeated request.

        `command` may refuse the request. It may use only those parts of the study that never change.
        `answer` makes the response from what the cycle decided. A request without an id gets one here, because
        a cycle runs again if its commit succeeded and the confirmation was lost.
        """
        once_only = request or _request_of_this_call()
        study = self.known(study_id)
        if study is not None:
            try:
                return await self._submit(study.id, command(study), once_only, answer)
            except StudyNotFoundError:  # deleted; perhaps there is another one with this name
                self._known.pop((study.project, study_id), None)
        found = await self._find(request, partial(find_study, study_id=study_id))
        if isinstance(found, bytes):
            return found
        self._known[found.project, study_id] = found
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return await self._submit(found.id, command(found), once_only, answer)

    async def order(
        self, request: Request | None, study_id: str, command: Command, answer: Answer
    ) -> tuple[bytes, int]:
        """Put a command on the study itself into its next cycle. Returns the response, and the study's id.

        This also works for a study whose row cannot be read, because it reads only the id. The id is 0 if the
        study was deleted since and only the request's first answer is left.
        """
        found = await self._find(request, partial(find_brief, study_id=study_id))
        if isinstance(found, bytes):
            return found, 0
        return await self._submit(found.id, command, request or _request_of_this_call(), answer), found.id

    async def _find(
        self, request: Request | None, find: Callable[[AsyncConnection], Awaitable[Found]]
    ) -> Found | bytes:
        """The study, or the request's answer from when the study existed. Raises StudyNotFoundError."""
        try:
            async with transaction(self.hub.engine) as conn:
                return await find(conn)
        except StudyNotFoundError:
            first = await _answered(self.hub.engine, request)
            if first is not None:
                return first
            raise

    async def _submit(self, study_id: int, command: Change, request: Request, answer: Answer) -> bytes:
        def render(outcome: Outcome, shown: Shown) -> bytes:
            return answer(outcome, shown).SerializeToString()

        submission = Submission(input=command, request=request, render=render)
        settled = await self.hub.submit(study_id, submission)
        assert settled.response is not None, "submit raises what was refused"
        return settled.response


def _request_of_this_call() -> Request:
    return Request(project=caller().project, id=f"call-{secrets.token_hex(16)}", method="", digest=b"")


def identity_of(message: Message, request_id: str) -> Request | None:
    """The identity of a mutating request: its id within the caller's project, and the rest of its content."""
    content = type(message)()
    content.CopyFrom(message)
    content.ClearField("request_id")
    return requests.identify(content, request_id, caller().project)


async def once(
    engine: AsyncEngine, request: Request | None, work: Callable[[AsyncConnection], Awaitable[Message]]
) -> bytes:
    """Do some work in a transaction of its own. Returns the response, or the first one of a repeated request.

    The work checks for obstacles before it writes. If it loses a race against another replica, it runs again and
    sees what the other one did. An obstacle may be the work of this very request, committed a moment ago. So a
    refusal counts only if the request has no answer by then.
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
            if not (is_overtaken(error) or is_conflict(error)) or attempt == ATTEMPTS:
                raise
    raise AssertionError("the loop ends by returning or raising")


async def _answered(engine: AsyncEngine, request: Request | None) -> bytes | None:
    """The earlier answer to a request, if there is one. Raises RequestIdReusedError."""
    if request is None:
        return None
    async with transaction(engine) as conn:
        first = (await requests.answered(conn, [request])).get(request.id)
    return requests.check_repeat(request, first) if first else None


async def find_study(conn: AsyncConnection, study_id: str) -> Study:
    """The study with a name in the caller's project. Raises StudyNotFoundError, or StudyDefectError if its row
    cannot be read."""
    study = await studies.find(conn, caller().project, study_id)
    if study is None:
        raise StudyNotFoundError(f"there is no study '{study_id}'")
    return study


async def find_brief(conn: AsyncConnection, study_id: str, *, lock: bool = False) -> Brief:
    """The always readable part of a study in the caller's project. Raises StudyNotFoundError."""
    study = await quarantine.brief_named(conn, caller().project, study_id, lock=lock)
    if study is None:
        raise StudyNotFoundError(f"there is no study '{study_id}'")
    return study


async def find_ended(conn: AsyncConnection, study_id: str) -> Brief:
    """A study that has ended with all of its trials, locked until the transaction ends. Raises StudyNotFoundError, or
    StudyNotEndedError."""
    study = await find_brief(conn, study_id, lock=True)
    if not study.state.ended:
        raise StudyNotEndedError(f"study '{study_id}' has not ended ({study.state.lower()})")
    if await load.live_count(conn, study.id):
        raise StudyNotEndedError(f"trials of study '{study_id}' are still on their workers")
    head = await studies.head(conn, study.id)
    if head is not None and head.ending:
        raise StudyNotEndedError(f"trials of study '{study_id}' are still being ended")
    return study


async def new_study(conn: AsyncConnection, study_id: int) -> pb.Study:
    """A study that was just created, read in the transaction that creates it."""
    return await _render(conn, study_id, await _read(conn, study_id))


async def whole_study(engine: AsyncEngine, analysis: AnalysisPools, study_id: int) -> pb.Study:
    """A study with its status. No transaction is open while its front is computed.

    For a study that cannot be shown or is too large, only the always readable part. Raises StudyNotFoundError.
    """
    async with transaction(engine) as conn:
        found = await _read(conn, study_id)
        if isinstance(found, Defect) or not found[1].measured:
            return await _render(conn, study_id, found)
    try:
        places = await analysis.front([vector for _, vector in found[1].measured], _signs(found[0]))
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
    brief = await quarantine.brief(conn, study_id)
    if brief is None:
        raise StudyNotFoundError("the study was deleted")
    return convert.bare_study(brief, message.reason)


async def require_trial(conn: AsyncConnection, study: Study, number: int) -> TrialView:
    """A trial with its rungs. Raises TrialNotFoundError."""
    view = await trials.one(conn, study.id, number)
    if view is None:
        raise TrialNotFoundError(f"study '{study.name}' has no trial {number}")
    return view


def shown_trial(shown: Shown, number: int) -> trial_pb2.Trial:
    """A trial as a cycle leaves it, with its rungs. Raises TrialNotFoundError."""
    view = shown.trials.get(number)
    if view is None or not isinstance(shown.study, Study):
        raise TrialNotFoundError(f"study '{shown.study.name}' has no trial {number}")
    return convert.trial(shown.study.name, view, shown.study.spec)


async def trial_message(conn: AsyncConnection, study: Study, number: int) -> trial_pb2.Trial:
    """A trial with its rungs and with what it waits for. Raises TrialNotFoundError."""
    view = await require_trial(conn, study, number)
    waiting = await waits_for(conn, study, [view.trial])
    return convert.trial(study.name, view, study.spec, waits_for=waiting.get(number, ""))
