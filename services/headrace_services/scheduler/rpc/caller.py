"""Who makes the current call: found once at the edge, asked for by whatever serves the call."""

from contextvars import ContextVar
from dataclasses import dataclass

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.identity.admitted import admitted
from headrace_services.identity.gate import Identity
from headrace_services.identity.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes the current call."""

    peer: str
    """The address, as gRPC writes it."""
    project: str = DEFAULT_PROJECT
    """Whose studies the call may see and change."""
    role: Role = Role.ADMIN
    token: str = ""
    """The id of the token that the call carries; empty where none is asked for."""


def governs() -> bool:
    """Whether the caller is shown every project: an admin of the installation's own one. What only such a caller may
    call is in the table of permissions (`OPERATE`)."""
    who = caller()
    return who.role is Role.ADMIN and (who.project == DEFAULT_PROJECT or not who.token)


_caller: ContextVar[Caller | None] = ContextVar("headrace_caller", default=None)
_ANYBODY = Identity()


def caller() -> Caller:
    """Who makes the current call. Raises LookupError outside of calls."""
    current = _caller.get()
    if current is None:
        raise LookupError("no call is being served here")
    return current


def calling(peer: str) -> Caller:
    """Who makes the call of this task, which comes from an address. Where no token is asked for, an admin."""
    who = admitted() or _ANYBODY
    return Caller(peer=peer, project=who.project, role=who.role, token=who.token)


def let_call(who: Caller) -> None:
    """Say who makes the call that this task serves."""
    _caller.set(who)
