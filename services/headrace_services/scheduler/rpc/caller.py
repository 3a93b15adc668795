"""The maker of the current call: determined once at the edge, and read by the code that serves the call."""

from contextvars import ContextVar
from dataclasses import dataclass

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.identity.admitted import admitted
from headrace_services.identity.gate import Identity
from headrace_services.identity.roles import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The maker of the current call."""

    peer: str
    """The address, as gRPC writes it."""
    project: str = DEFAULT_PROJECT
    """The project whose studies the call may see and change."""
    role: Role = Role.ADMIN
    token: str = ""
    """The id of the token that the call carries; empty if no token is required."""


def governs() -> bool:
    """Whether the caller sees every project: an admin of the default project. The calls that only such a caller
    may make are in the table of permissions (`OPERATE`)."""
    who = caller()
    return who.role is Role.ADMIN and (who.project == DEFAULT_PROJECT or not who.token)


_caller: ContextVar[Caller | None] = ContextVar("headrace_caller", default=None)
_ANYBODY = Identity()


def caller() -> Caller:
    """The maker of the current call. Raises LookupError outside of calls."""
    current = _caller.get()
    if current is None:
        raise LookupError("no call is being served here")
    return current


def calling(peer: str) -> Caller:
    """The maker of this task's call, which comes from an address. If no token is required, it is an admin."""
    who = admitted() or _ANYBODY
    return Caller(peer=peer, project=who.project, role=who.role, token=who.token)


def let_call(who: Caller) -> None:
    """Set the maker of the call that this task serves."""
    _caller.set(who)
