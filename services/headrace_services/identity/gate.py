"""The gate: whose token a call carries, and whether the table admits its role."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from headrace.errors import PermissionDeniedError, UnauthenticatedError
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.identity import tokens
from headrace_services.identity.permissions import PERMISSIONS, Permission, may_call
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token

HEADER = "authorization"
Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller. If no token is required, everybody is an admin of the default project."""

    project: str = DEFAULT_PROJECT
    role: Role = Role.ADMIN
    token: str = ""
    """The id of the token; empty if none is required."""


class Tokens(Protocol):
    """Knows the valid tokens."""

    async def identify(self, token: Token) -> Identity:
        """The owner of a token. Raises UnauthenticatedError for one that is unknown, expired or revoked."""
        ...


class Gate:
    """Admits calls, or says why not."""

    def __init__(self, known: Tokens) -> None:
        self._tokens = known

    async def admit(self, method: str, metadata: Metadata) -> Identity | None:
        """The caller of a method (given by its path); None if everybody may call it.

        Raises UnauthenticatedError and PermissionDeniedError.
        """
        rule = PERMISSIONS.get(method)
        permission = rule.permission if rule is not None else None
        if permission is Permission.OPEN:
            return None
        who = await self._tokens.identify(token_in(metadata))
        if permission is None or not may_call(permission, who.role, who.project):
            raise _denied(method, permission, who)
        return who


def token_in(metadata: Metadata) -> Token:
    """The token that a call carries. Raises UnauthenticatedError, which never shows what the call carried."""
    found = [value for key, value in metadata if key == HEADER]
    if not found:
        raise UnauthenticatedError(f"{HEADER}: the call carries no token")
    text = found[0].decode(errors="replace") if isinstance(found[0], bytes) else found[0]
    scheme, _, rest = text.strip().partition(" ")
    token = tokens.read(rest.strip()) if scheme.lower() == "bearer" and len(found) == 1 else None
    if token is None:
        raise UnauthenticatedError(
            f"{HEADER}: the value is not a Headrace token",
            remedy="A token reads hr_ID_SECRET and has 63 characters. Copy it whole, as `headrace token create` "
            "printed it.",
        )
    return token


def _denied(method: str, permission: Permission | None, who: Identity) -> PermissionDeniedError:
    name = method.rpartition("/")[2]
    allowed = [role.value for role in Role if permission is not None and role in permission.roles]
    said = f"{HEADER}: a token with the role {who.role.value} of project '{who.project}' may not call {name}"
    if not allowed:
        return PermissionDeniedError(said, remedy="No token allows this call.")
    if permission is Permission.OPERATE:
        return PermissionDeniedError(
            said, remedy=f"It concerns every project. Ask an admin of project '{DEFAULT_PROJECT}'."
        )
    needed = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
    return PermissionDeniedError(
        said, remedy=f"It needs the role {needed}. Ask an admin of the project for such a token."
    )
