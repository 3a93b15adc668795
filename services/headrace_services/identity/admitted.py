"""Whom the gate has let in to make the current call; told at the door, asked for by whatever serves the call."""

from contextvars import ContextVar

from headrace_services.identity.gate import Identity

_identity: ContextVar[Identity | None] = ContextVar("headrace_identity", default=None)


def admit(identity: Identity) -> None:
    """Say whose token the call of this task carries, before it is served."""
    _identity.set(identity)


def admitted() -> Identity | None:
    """Whose token it is; None where none is asked for."""
    return _identity.get()


def who_pays(peer: str) -> str:
    """Whose share of a server the current call takes: its token's, over whatever connections it comes. Where no token
    is asked for, its connection's, named as gRPC names peers."""
    who = _identity.get()
    return peer if who is None or not who.token else who.token
