"""The caller whom the gate has admitted for the current call: set at the entrance, read by whatever serves the
call."""

from contextvars import ContextVar

from headrace_services.identity.gate import Identity

_identity: ContextVar[Identity | None] = ContextVar("headrace_identity", default=None)


def admit(identity: Identity) -> None:
    """Record whose token the call of this task carries, before it is served."""
    _identity.set(identity)


def admitted() -> Identity | None:
    """The owner of the token; None if none is required."""
    return _identity.get()


def who_pays(peer: str) -> str:
    """Whose share of a server the current call uses: that of its token, over whatever connection it arrives. If no
    token is required, that of its connection, named as gRPC names peers."""
    who = _identity.get()
    return peer if who is None or not who.token else who.token
