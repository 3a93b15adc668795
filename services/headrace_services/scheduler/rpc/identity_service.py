"""IdentityService: makes, lists and revokes tokens, and tells callers who they are.

The role of the caller is checked at the edge. Which tokens an admin may touch is checked here (`may_give`).
"""
# ruff: noqa: ARG002  (every method takes the call's context)

from datetime import datetime
from typing import Any, Final

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.errors import (
    InvalidFieldError,
    PermissionDeniedError,
    TokenNotFoundError,
    Violation,
    show_value,
)
from headrace.spec.names import DEFAULT_PROJECT, PROJECT
from headrace.v1 import identity_pb2 as pb
from headrace.v1.identity_pb2_grpc import IdentityServiceServicer
from headrace_services.identity.permissions import may_give
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token, is_id, new_token
from headrace_services.scheduler.rpc import pages
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.store import tokens
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.tokens import TokenView

Context = grpc.aio.ServicerContext[Any, Any]

_ROLES: Final = {
    Role.VIEWER: pb.ROLE_VIEWER,
    Role.EDITOR: pb.ROLE_EDITOR,
    Role.ADMIN: pb.ROLE_ADMIN,
    Role.WORKER: pb.ROLE_WORKER,
}
_NUMBERS: Final = {number: role for role, number in _ROLES.items()}
_PREFIX: Final = "tokens/"


class IdentityServicer(IdentityServiceServicer):
    """Calls about tokens, over a database."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenResponse:
        """Make a token, and show its secret, which is shown only this once."""
        project = request.project or caller().project
        role = _NUMBERS.get(request.role)
        if role is None:
            raise _fault("role", "", "is required", "Give viewer, editor, admin or worker.")
        check_project(project)
        _check_may_give(role, project)
        lifetime_s = request.lifetime.ToTimedelta().total_seconds() if request.HasField("lifetime") else None
        token, stored = await make(
            self._engine, name=request.display_name, project=project, role=role, lifetime_s=lifetime_s
        )
        return pb.CreateTokenResponse(token=_message(stored), secret=token.text)

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensResponse:
        """The tokens of the caller's project; those of all projects for an admin of the default one."""
        window = pages.window(request, (int,))
        project: str | None = request.project or _reach()
        if request.project:
            _check_may_give(Role.VIEWER, request.project)
        elif project == DEFAULT_PROJECT:
            project = None
        before = int(window.after[0]) if window.after else None
        async with transaction(self._engine) as conn:
            found = await tokens.newest(conn, project=project, before=before, limit=window.limit)
        page = window.fill(
            found, found, _message, lambda token: (token.number,), lambda token: f"{_PREFIX}{token.id}"
        )
        return pb.ListTokensResponse(tokens=page.messages, next_page_token=page.token)

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.RevokeTokenResponse:
        """End a token for good."""
        token_id = request.name.removeprefix(_PREFIX)
        if token_id == request.name or not is_id(token_id):
            remedy = "Write it as tokens/TOKEN; `headrace token list` shows the ids."
            raise _fault("name", show_value(request.name), "is not the name of a token", remedy)
        async with transaction(self._engine) as conn:
            await _own(conn, token_id)
            revoked = await tokens.revoke(conn, token_id)
        if revoked is None:
            raise _not_found(token_id)
        return pb.RevokeTokenResponse(token=_message(revoked))

    async def WhoAmI(self, request: pb.WhoAmIRequest, context: Context) -> pb.WhoAmIResponse:
        """Who the caller is."""
        who = caller()
        response = pb.WhoAmIResponse(project=who.project, role=_ROLES[who.role])
        if who.token:
            async with transaction(self._engine) as conn:
                if found := await tokens.get(conn, who.token):
                    response.token.CopyFrom(_message(found))
        return response


async def make(
    engine: AsyncEngine, *, name: str, project: str, role: Role, lifetime_s: float | None
) -> tuple[Token, TokenView]:
    """Make a token and store its digest."""
    token = new_token()
    async with transaction(engine) as conn:
        stored = await tokens.add(conn, token, name=name, project=project, role=role, lifetime_s=lifetime_s)
    return token, stored


def check_project(project: str) -> None:
    """Raise InvalidFieldError if a name is not a valid name of a project."""
    problem = PROJECT.problem(project, "project")
    if problem is not None:
        raise InvalidFieldError([problem.violation()])


async def _own(conn: AsyncConnection, token_id: str) -> None:
    """Raise TokenNotFoundError unless the caller may touch a token: a token of another project is invisible."""
    found = await tokens.get(conn, token_id)
    if found is None or not may_give(caller().role, _reach(), to_role=found.role, to_project=found.project):
        raise _not_found(token_id)


def _reach() -> str:
    """The project whose tokens the caller may touch. A caller that no token binds to a project may touch all."""
    return caller().project if caller().token else DEFAULT_PROJECT


def _check_may_give(role: Role, project: str) -> None:
    if not may_give(caller().role, _reach(), to_role=role, to_project=project):
        what = "of workers" if role is Role.WORKER else f"of project '{project}'"
        raise PermissionDeniedError(
            f"an admin of project '{caller().project}' may not give or see tokens {what}",
            remedy=f"An admin of project '{DEFAULT_PROJECT}' may, and so does `headrace token create --database-url`.",
        )


def _message(token: TokenView) -> pb.Token:
    return pb.Token(
        name=f"{_PREFIX}{token.id}",
        display_name=token.name,
        project=token.project,
        role=_ROLES[token.role],
        create_time=_time(token.create_time),
        expire_time=_time(token.expire_time),
        revoke_time=_time(token.revoke_time),
        last_used_time=_time(token.last_used_time),
    )


def _time(value: datetime | None) -> Timestamp | None:
    if value is None:
        return None
    message = Timestamp()
    message.FromDatetime(value)
    return message


def _not_found(token_id: str) -> TokenNotFoundError:
    return TokenNotFoundError(f"there is no token {token_id}")


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
