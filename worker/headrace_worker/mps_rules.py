"""Clients of one MPS server: how one is ended, and who is charged when the server faults. Pure.

Ending. A client that is killed while its work runs on the card can hang the server, or leave other clients with
wrong results. So a client climbs down a ladder, one rung at a time (`LADDER`):

    asked to end → its work is ended (`terminate_client`) → killed
                   └ that fails → the card is drained → the server is restarted → killed

A client that has left the card by itself meanwhile is killed without more ado, and so is one whose control daemon
is gone, hangs or takes no orders: the others are not disturbed for what cannot be done. What a client says after
its work was ended is not its own error (`Company.taken_off`).

Faults. A fatal fault ends all clients on its card with the same error, and the server does not say whose it was. So
an end with such words proves nothing while others were on the card:

    only one ended so, the server is well, the others train on → its own error
    several ended so, another one crashed, or the server is at fault or gone → an event, of everybody who was there
        one of them crashed or was killed before the others ended, or printed a failed assertion → it is the culprit
        otherwise nobody is charged, and the scheduler counts who was there (`core.exits`)

An exception is no cause: its process lets go of the card in good order. Words that say that the server itself is
gone concern all cards that it serves, also those with one client, and are never a client's own error.

Local time orders ends on one machine, and nothing else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from headrace.v1 import worker_pb2
from headrace_worker.device_health import suspicion_in
from headrace_worker.exits import Verdict

WINDOW_S: Final = 10.0
"""An end counts as the cause of a fault that shows within this time after it."""
KEPT_S: Final = 600.0
"""How long an end is remembered. Its event may last until the slowest of the others notices the fault."""


class Rung(Enum):
    """How far the end of a client has come."""

    ASKED = auto()
    TERMINATE = auto()
    DRAIN = auto()
    RESTART = auto()
    KILL = auto()


class Step(Enum):
    """What happened on a rung."""

    TIME_IS_OVER = auto()
    DONE = auto()
    FAILED = auto()
    GONE = auto()
    """The client is off the card already."""
    POWERLESS = auto()
    """The control daemon is gone, does not answer, or is another user's."""


LADDER: Final[Mapping[tuple[Rung, Step], Rung]] = {
    (Rung.ASKED, Step.TIME_IS_OVER): Rung.TERMINATE,
    (Rung.TERMINATE, Step.DONE): Rung.KILL,
    (Rung.TERMINATE, Step.FAILED): Rung.DRAIN,
    (Rung.DRAIN, Step.DONE): Rung.RESTART,
    (Rung.DRAIN, Step.TIME_IS_OVER): Rung.RESTART,
    (Rung.DRAIN, Step.FAILED): Rung.RESTART,
    (Rung.RESTART, Step.DONE): Rung.KILL,
    (Rung.RESTART, Step.FAILED): Rung.KILL,
    **{
        (rung, step): Rung.KILL
        for rung in (Rung.TERMINATE, Rung.DRAIN, Rung.RESTART)
        for step in (Step.GONE, Step.POWERLESS)
    },
}


class Evidence(Enum):
    """What an end says about a fault of the server."""

    CLEAN = auto()
    """It ended as it should, or was ended without harm."""
    OWN = auto()
    """It failed, in words that no other client would get."""
    CRASHED = auto()
    """It crashed or was killed, possibly with work in flight, and said nothing of a fault."""
    ASSERTION = auto()
    """A kernel of its own failed an assertion. Only the client that started the kernel prints that."""
    SHARED = auto()
    """It failed in words that every client on the card gets."""
    SERVER = auto()
    """It failed in words that every client of the server gets when that is gone."""
    UNSERVED = auto()
    """The server did not accept it."""


_ASSERTION = re.compile(r"\bblock: \[\d+, *\d+, *\d+\].*\bAssertion\b.*\bfailed")
# The texts of CUDA's errors 805 to 809, and their names.
_UNSERVED = re.compile(
    r"failed to connect to the MPS control daemon or the MPS server|MPS server is not ready to accept"
    r"|required to support (the )?(number of )?(MPS client|device connections).* exhausted"
    r"|cudaErrorMps(ConnectionFailed|ServerNotReady|MaxClientsReached|MaxConnectionsReached)"
    r"|CUDA_ERROR_MPS_(CONNECTION_FAILED|SERVER_NOT_READY|MAX_CLIENTS_REACHED|MAX_CONNECTIONS_REACHED)",
    re.IGNORECASE,
)
# Frameworks give the fatal errors of a card in sentences (PyTorch) or by their names (JAX, TensorFlow, CuPy, Numba).
_SHARED = re.compile(
    r"device-side assert triggered|\b(CUDA_ERROR_|cudaError_?)(ILLEGAL_?(ADDRESS|INSTRUCTION)"
    r"|LAUNCH_?(FAILED|FAILURE|TIMEOUT)|MISALIGNED_?ADDRESS|INVALID_?(PC|ADDRESS_?SPACE)"
    r"|HARDWARE_?STACK_?ERROR|ASSERT|UNKNOWN)\b",
    re.IGNORECASE,
)
_SERVER = re.compile(
    r"between the MPS server and the MPS client failed|MPS client has been terminated by the server"
    r"|cudaErrorMps(RpcFailure|ClientTerminated)|CUDA_ERROR_MPS_(RPC_FAILURE|CLIENT_TERMINATED)",
    re.IGNORECASE,
)
_SEARCHED = 8192


def evidence_of(verdict: Verdict, words: str) -> Evidence:
    """What an end says, by its verdict and the end of its output."""
    words = words[-_SEARCHED:]
    charged = verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED
    if charged and _ASSERTION.search(words):
        return Evidence.ASSERTION
    if charged and _UNSERVED.search(words):
        return Evidence.UNSERVED
    if charged and _SERVER.search(words):
        return Evidence.SERVER
    if charged and (_SHARED.search(words) or suspicion_in(words)):
        return Evidence.SHARED
    if not charged and verdict.outcome != worker_pb2.EXIT_OUTCOME_LOST:
        return Evidence.CLEAN
    return Evidence.CRASHED if verdict.exit_code < 0 else Evidence.OWN


_OF_A_FAULT = (Evidence.SHARED, Evidence.SERVER, Evidence.ASSERTION)
_EVENTFUL = (*_OF_A_FAULT, Evidence.CRASHED)
"""Two such ends at once are an event, if one of them is in the words of a fault."""


class Blame(Enum):
    """Who is charged for an end in the words of a fault."""

    OWN = auto()
    """The trial itself: the fault was nobody else's."""
    ANOTHER = auto()
    """Another trial, which is known."""
    NOBODY = auto()
    """It is not known whose fault it was. All who were there are counted."""
    WORKER = auto()
    """The worker, which restarted the server."""


@dataclass(slots=True, kw_only=True)
class _Client:
    card: str
    name: str
    exited_s: float | None = None
    """When its process exited. Its end is judged later."""
    ended_s: float | None = None
    evidence: Evidence = Evidence.CLEAN
    event: "Event | None" = None
    off: bool = False
    """The worker has ended its work on the card."""


@dataclass(slots=True, kw_only=True)
class Event:
    """A fault of the server, on one card or on all."""

    culprit: str = ""
    name: str = ""
    """The culprit's, for people."""
    shown_s: float = 0.0
    """When the first client ended of it."""
    of_worker: bool = False


@dataclass(slots=True)
class Company:
    """The clients on all cards of one worker: who was there when a fault came, and who ended in what way."""

    _clients: dict[str, _Client] = field(default_factory=dict)
    faults: int = 0
    """How many events there were, without restarts of the worker's own."""

    def joins(self, client: str, card: str, name: str, now_s: float) -> None:
        """A trial is about to run on a card; `name` is for people."""
        for old, one in list(self._clients.items()):
            if one.ended_s is not None and now_s - one.ended_s > KEPT_S:
                del self._clients[old]
        self._clients[client] = _Client(card=card, name=name)

    def has(self, client: str) -> bool:
        """Whether a trial is a client that runs."""
        return client in self._clients and self._clients[client].ended_s is None

    @property
    def running(self) -> frozenset[str]:
        """The clients that run, on all cards. Safe in any thread."""
        return frozenset(client for client, one in list(self._clients.items()) if one.ended_s is None)

    def name_of(self, client: str) -> str:
        """A client's name, for people."""
        return self._clients[client].name

    def taken_off(self, client: str) -> None:
        """The worker ends a client's work: how it ends is the worker's doing."""
        self._clients[client].off = True

    def was_taken_off(self, client: str) -> bool:
        """Whether the worker has ended its work."""
        return client in self._clients and self._clients[client].off

    def exits(self, client: str, now_s: float) -> None:
        """A trial's process has exited; how is not known yet."""
        if self.has(client):
            self._clients[client].exited_s = now_s

    def ends(self, client: str, evidence: Evidence, now_s: float) -> None:
        """It is known how a trial's process ended."""
        own = self._clients[client]
        own.ended_s = now_s if own.exited_s is None else own.exited_s
        own.evidence = Evidence.CLEAN if own.off else evidence
        evidence, event = own.evidence, own.event
        if event is not None:
            if not event.culprit and not event.of_worker and _is_cause(own, event.shown_s):
                event.culprit, event.name = client, own.name
        elif evidence is Evidence.SERVER:
            self._open(None, now_s)
        elif evidence in _EVENTFUL and any(
            one.evidence in _EVENTFUL and Evidence.SHARED in (evidence, one.evidence)
            for other, one in self._at(own.card, now_s).items()
            if other != client and one.ended_s is not None
        ):
            self._open(own.card, now_s)

    def is_settled(self, client: str) -> bool:
        """Whether it is known how everybody ended who was on a client's card and has exited."""
        card = self._clients[client].card
        return not any(
            one.card == card and one.exited_s is not None and one.ended_s is None
            for one in self._clients.values()
        )

    def server_failed(self, client: str, now_s: float) -> None:
        """The server turned out to be at fault, or gone, after a trial ended in the words of a fault."""
        own = self._clients[client]
        if own.event is None:
            self._open(own.card, now_s)

    def restarts(self) -> Event:
        """The worker is about to restart the server: whatever that ends is the worker's doing."""
        event = Event(of_worker=True)
        for one in self._clients.values():
            if one.ended_s is None and one.event is None:
                one.event = event
        return event

    def withdraw(self, event: Event) -> None:
        """The server was not restarted after all."""
        for one in self._clients.values():
            if one.event is event and one.ended_s is None:
                one.event = None

    def was_alone(self, client: str) -> bool:
        """Whether nobody else was on its card when a trial ended, or shortly before."""
        own = self._clients[client]
        return own.ended_s is not None and self._at(own.card, own.ended_s).keys() == {client}

    def in_event(self, client: str, now_s: float | None = None) -> bool:
        """Whether a trial was there when a fault came; with a time, whether that was shortly before it."""
        event = self._clients[client].event
        return event is not None and (now_s is None or event.of_worker or now_s - event.shown_s <= WINDOW_S)

    def blame(self, client: str) -> tuple[Blame, str]:
        """Who is charged for the end of a trial, by what is known now, and the culprit's name if it is another."""
        event = self._clients[client].event
        if event is None or event.culprit == client:
            return Blame.OWN, ""
        if event.of_worker:
            return Blame.WORKER, ""
        if event.culprit:
            return Blame.ANOTHER, event.name
        return Blame.NOBODY, ""

    def _at(self, card: str | None, now_s: float) -> dict[str, _Client]:
        """Those on a card, or on any, now or shortly before."""
        return {
            client: one
            for client, one in self._clients.items()
            if card in (None, one.card) and (one.ended_s is None or now_s - one.ended_s <= WINDOW_S)
        }

    def _open(self, card: str | None, now_s: float) -> None:
        """A fault came: it concerns all who run on the card, or on any, and those who ended of it."""
        there = {
            client: one
            for client, one in self._at(card, now_s).items()
            if one.event is None and (one.ended_s is None or one.evidence is not Evidence.CLEAN)
        }
        shown_s = min(
            (
                one.ended_s
                for one in there.values()
                if one.evidence in _OF_A_FAULT and one.ended_s is not None
            ),
            default=now_s,
        )
        causes = {client: one.ended_s for client, one in there.items() if _is_cause(one, shown_s)}
        culprit = max(causes, key=lambda client: causes[client] or 0.0, default="")
        name = there[culprit].name if culprit else ""
        event = Event(culprit=culprit, name=name, shown_s=shown_s)
        self.faults += 1
        for one in there.values():
            one.event = event


def _is_cause(one: _Client, shown_s: float) -> bool:
    """Whether a client's end explains a fault that first ended another one at this time."""
    if one.evidence is Evidence.ASSERTION:
        return True
    return one.evidence is Evidence.CRASHED and one.ended_s is not None and one.ended_s <= shown_s
