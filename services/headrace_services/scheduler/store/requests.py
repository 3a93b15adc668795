"""Answers to requests, kept for a day: a request that arrives twice changes things once."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from google.protobuf.message import Message
from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import InvalidFieldError, RequestIdReusedError, Violation
from headrace_services.scheduler.store import tables

KEPT_FOR = timedelta(days=1)
MAX_ID_LENGTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A mutating call: the caller's id, the method, and a digest of what it asks."""

    id: str
    method: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request was answered with."""

    method: str
    digest: bytes
    response: bytes


def identify(message: Message, request_id: str) -> Request | None:
    """Return the identity of a mutating request, or None for one without an id, which is not repeatable."""
    if not request_id:
        return None
    if "\0" in request_id:
        violation = Violation(field="request_id", message="holds a NUL character", remedy="Use a UUID.")
        raise InvalidFieldError([violation])
    if len(request_id) > MAX_ID_LENGTH:
        raise InvalidFieldError(
            [
                Violation(
                    field="request_id",
                    value=f"{len(request_id)} characters",
                    message=f"is longer than {MAX_ID_LENGTH} characters",
                    remedy="Use a UUID.",
                )
            ]
        )
    digest = hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
    return Request(id=request_id, method=type(message).__name__, digest=digest)


async def answered(conn: AsyncConnection, requests: Sequence[Request]) -> dict[str, Answer]:
    """Return the answers that were given to these requests before, by id."""
    if not requests:
        return {}
    r = tables.request
    query = select(r).where(r.c.request_id.in_([request.id for request in requests]))
    return {
        row.request_id: Answer(method=row.method, digest=row.digest, response=row.response)
        for row in await conn.execute(query)
    }


def check_repeat(request: Request, answer: Answer) -> bytes:
    """Return the first answer. Raises RequestIdReusedError where the id belongs to another request."""
    if (answer.method, answer.digest) != (request.method, request.digest):
        raise RequestIdReusedError(f"request_id '{request.id}' was used before for another request")
    return answer.response


async def remember(conn: AsyncConnection, request: Request, response: bytes) -> None:
    """Store an answer, in the transaction that did the work."""
    await remember_all(conn, [(request, response)])


async def remember_all(conn: AsyncConnection, answers: Sequence[tuple[Request, bytes]]) -> None:
    """Store the answers of a step."""
    if answers:
        await conn.execute(insert(tables.request), [_columns(*answer) for answer in answers])


def _columns(request: Request, response: bytes) -> dict[str, object]:
    return {
        "request_id": request.id,
        "method": request.method,
        "digest": request.digest,
        "response": response,
    }


async def sweep(conn: AsyncConnection) -> None:
    """Forget answers older than a day."""
    r = tables.request
    await conn.execute(delete(r).where(r.c.time < func.clock_timestamp() - KEPT_FOR))
