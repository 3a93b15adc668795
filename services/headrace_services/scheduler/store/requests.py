"""Answers to requests, kept for a while: a request that arrives twice has its effect once."""

import hashlib
from collections.abc import Sequence
from datetime import timedelta

from google.protobuf.message import Message
from msgspec import Struct
from sqlalchemy import ARRAY, LargeBinary, Text, any_, bindparam, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import RequestIdReusedError
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement, pipeline


class Request(Struct, frozen=True, kw_only=True):
    """A mutating call: the caller's id within its project, the method, and a digest of what it asks."""

    project: str
    id: str
    method: str
    digest: bytes


class Answer(Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    method: str
    digest: bytes
    response: bytes


def identify(message: Message, request_id: str, project: str) -> Request | None:
    """Return the identity of a mutating request, or None for one without an id, which cannot be repeated."""
    if not request_id:
        return None
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
    return Request(project=project, id=request_id, method=type(message).__name__, digest=digest)


async def answered(conn: AsyncConnection, requests: Sequence[Request]) -> dict[str, Answer]:
    """Return the earlier answers to these requests, by id."""
    async with pipeline(conn) as sent:
        asked = ask_answers(sent, requests)
    return asked.answers()


class AskedAnswers(Struct, frozen=True, kw_only=True):
    """Answers that were requested."""

    found: Reply | None

    def answers(self) -> dict[str, Answer]:
        """The answers that exist, by request id."""
        return {
            row.request_id: Answer(method=row.method, digest=row.digest, response=row.response)
            for row in (self.found.rows if self.found else ())
        }


def ask_answers(sent: Pipeline, requests: Sequence[Request]) -> AskedAnswers:
    """Ask for the earlier answers to these requests of one project."""
    if not requests:
        return AskedAnswers(found=None)
    ids, project = [request.id for request in requests], requests[0].project
    assert all(request.project == project for request in requests), "a study is changed from its own project"
    return AskedAnswers(found=sent.run(_ANSWERED, project=project, ids=ids))


def check_repeat(request: Request, answer: Answer) -> bytes:
    """Return the first answer. Raises RequestIdReusedError if the id belongs to another request."""
    if (answer.method, answer.digest) != (request.method, request.digest):
        raise RequestIdReusedError(f"request_id '{request.id}' was used before for another request")
    return answer.response


async def remember(conn: AsyncConnection, request: Request, response: bytes) -> None:
    """Store an answer, in the transaction that did the work."""
    async with pipeline(conn) as sent:
        remember_all(sent, [(request, response)])


def remember_all(sent: Pipeline, answers: Sequence[tuple[Request, bytes]]) -> None:
    """Store the answers of a cycle."""
    if answers:
        requests, responses = zip(*answers, strict=True)
        sent.run(
            _REMEMBER,
            projects=[request.project for request in requests],
            ids=[request.id for request in requests],
            methods=[request.method for request in requests],
            digests=[request.digest for request in requests],
            responses=list(responses),
        )


async def forget_old(conn: AsyncConnection, age: timedelta, most: int) -> int:
    """Delete at most this many answers of this age, except those that another transaction holds. Returns how many."""
    r = tables.request
    old = select(r.c.project, r.c.request_id).where(
        r.c.time < func.now() - age
    )  # the clock function itself would use no index
    some = old.order_by(r.c.time).limit(most).with_for_update(skip_locked=True).cte("some")
    this = (r.c.project == some.c.project, r.c.request_id == some.c.request_id)
    return (await conn.execute(delete(r).where(*this))).rowcount


_r = tables.request
_ANSWERED = Statement(
    lambda: select(_r).where(
        _r.c.project == bindparam("project", type_=Text),
        _r.c.request_id == any_(bindparam("ids", type_=ARRAY(Text))),
    )
)
_new = (
    func.unnest(
        bindparam("projects", type_=ARRAY(Text)),
        bindparam("ids", type_=ARRAY(Text)),
        bindparam("methods", type_=ARRAY(Text)),
        bindparam("digests", type_=ARRAY(LargeBinary)),
        bindparam("responses", type_=ARRAY(LargeBinary)),
    )
    .table_valued("project", "request_id", "method", "digest", "response", name="new")
    .render_derived()
)
_REMEMBER = Statement(
    lambda: insert(_r).from_select(
        ["project", "request_id", "method", "digest", "response"], select(*_new.c), include_defaults=False
    )
)
