"""Tokens, and who the caller is: the values, and the operations as flows."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from google.protobuf.duration_pb2 import Duration

from headrace.client.flow import Flow, rpc
from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.v1 import identity_pb2 as pb

_PREFIX: Final = "tokens/"
_PAGE_SIZE: Final = 500


class Role(StrEnum):
    """What a token allows its holder to do."""

    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"
    WORKER = "worker"
    UNKNOWN = "unknown"


_ROLES: Final = {
    pb.ROLE_VIEWER: Role.VIEWER,
    pb.ROLE_EDITOR: Role.EDITOR,
    pb.ROLE_ADMIN: Role.ADMIN,
    pb.ROLE_WORKER: Role.WORKER,
}
_NUMBERS: Final = {role.value: number for number, role in _ROLES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A token without its secret."""

    id: str
    name: str
    """For people: the owner, or the purpose."""
    project: str
    role: Role
    create_time: datetime
    expire_time: datetime | None
    """None: the token never expires."""
    revoke_time: datetime | None
    last_used_time: datetime | None
    """Accurate to about ten minutes; None: never used."""

    def state(self, now: datetime) -> str:
        """`works`, `expired` or `revoked`."""
        if self.revoke_time is not None:
            return "revoked"
        return "expired" if self.expire_time is not None and self.expire_time <= now else "works"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that was just created. Its secret is not stored anywhere else."""

    info: TokenInfo
    secret: str = field(repr=False)
    """The value for `token=` and HEADRACE_TOKEN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhoIs:
    """Who the caller is to the server."""

    project: str
    role: Role
    token: TokenInfo | None
    """None if the server requires no token."""


def create_token(
    _: object,
    role: str,
    *,
    project: str | None = None,
    name: str = "",
    lifetime: timedelta | None = timedelta(days=90),
) -> Flow[NewToken]:
    """Creates a token with the role `viewer`, `editor`, `admin` or `worker`, for the caller's project or another
    one.

    Only this answer contains its `secret`. It works for `lifetime`; None: until it is revoked. For admins."""
    request = pb.CreateTokenRequest(display_name=name, project=project or "", role=_number(role))
    if lifetime is not None:
        request.lifetime.CopyFrom(_duration(lifetime))
    response = yield from rpc(pb.CreateTokenResponse, request)
    return NewToken(info=_info(response.token), secret=response.secret)


def tokens(_: object, project: str | None = None) -> Flow[list[TokenInfo]]:
    """The tokens that the caller may see, newest first; only those of `project`, if given. For admins."""
    found: list[TokenInfo] = []
    page_token = ""
    while True:
        request = pb.ListTokensRequest(page_size=_PAGE_SIZE, page_token=page_token, project=project or "")
        page = yield from rpc(pb.ListTokensResponse, request)
        found += map(_info, page.tokens)
        page_token = page.next_page_token
        if not page_token:
            return found


def revoke_token(_: object, token_id: str) -> Flow[TokenInfo]:
    """Revokes a token for good, by its id. It may work for a few more seconds. For admins."""
    response = yield from rpc(
        pb.RevokeTokenResponse, pb.RevokeTokenRequest(name=f"{_PREFIX}{token_id.removeprefix(_PREFIX)}")
    )
    return _info(response.token)


def who_am_i(_: object) -> Flow[WhoIs]:
    """Who this client is to the scheduler: the project, the role and the token."""
    response = yield from rpc(pb.WhoAmIResponse, pb.WhoAmIRequest())
    return WhoIs(
        project=response.project,
        role=_ROLES.get(response.role, Role.UNKNOWN),
        token=_info(response.token) if response.HasField("token") else None,
    )


def _number(role: str) -> pb.Role.ValueType:
    if role not in _NUMBERS:
        remedy = f"Give one of {', '.join(_NUMBERS)}."
        raise InvalidFieldError(
            [Violation(field="role", value=show_value(role), message="is not a role", remedy=remedy)]
        )
    return _NUMBERS[role]


def _duration(lifetime: timedelta) -> Duration:
    message = Duration()
    message.FromTimedelta(lifetime)
    return message


def _info(proto: pb.Token) -> TokenInfo:
    def time(field: str) -> datetime | None:
        return getattr(proto, field).ToDatetime(UTC) if proto.HasField(field) else None  # type: ignore[arg-type]

    return TokenInfo(
        id=proto.name.removeprefix(_PREFIX),
        name=proto.display_name,
        project=proto.project,
        role=_ROLES.get(proto.role, Role.UNKNOWN),
        create_time=proto.create_time.ToDatetime(UTC),
        expire_time=time("expire_time"),
        revoke_time=time("revoke_time"),
        last_used_time=time("last_used_time"),
    )
