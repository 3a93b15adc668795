"""Clients of one MPS server: how one is ended, and who is charged when the server faults. Pure.

Ending. A client that is killed while its work runs on the card can hang the server, or leave other clients with
wrong results. So a client climbs down a ladder, one rung at a time (`LADDER`):

    its work is ended (`terminate_client`) → killed
    └ that fails → the card is drained → the server is restarted → killed

A client that has left the card by itself meanwhile is killed at once. So is one whose control daemon is gone or takes
no orders, or whose server has clients of somebody else: the others are not disturbed for what cannot be done, or
harmed for what is not theirs. What a client says after its work was ended is not its own error (`Company.taken_off`).

Faults. A fatal fault ends all clients on its card with the same error message, and the server does not say whose it
was. So such an end proves nothing while others were on the card:

    only one ended so, the server is well, the others keep training → its own error
    several ended so, another one crashed, or the server is at fault or gone → an event, of everybody who was there
        one of them crashed or was killed before the others ended, or printed a failed assertion → it is the culprit
        the worker killed one whose work it could not end → it is the worker's doing
        otherwise nobody is charged, and the scheduler counts who was there (`core.exits`)

An exception is no cause: its process lets go of the card in good order. A message that says that the server itself is
gone concerns all cards that it serves, also those with one client, and is never a client's own error.

Local time orders ends on one machine, and nothing else.

Sources: the texts of `cudaGetErrorString`; NVIDIA, "Multi-Process Service", sections on error containment, client
termination and `terminate_client`.
"""

import re
from collections.abc import Iterable, Mapping
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
    """The control daemon is gone, does not answer or is another user's, or the server has clients of others."""


LADDER: Final[Mapping[tuple[Rung, Step], Rung]] = {
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
    UNREADY = auto()
    """The server did not accept it at that moment."""
    CROWDED = auto()
    """The server has as many clients as it can have."""


_ASSERTION = re.compile(r"\bblock: \[\d+, *\d+, *\d+\].*\bAssertion\b.*\bfailed")
_UNREADY = re.compile(
    r"failed to connect to the MPS control daemon or the MPS server|MPS server is not ready to accept"
    r"|cudaErrorMps(ConnectionFailed|ServerNotReady)|CUDA_ERROR_MPS_(CONNECTION_FAILED|SERVER_NOT_READY)",
    re.IGNORECASE,
)
_CROWDED = re.compile(
    r"hardware resources required to (create MPS client|support device connections) have been exhausted"
    r"|cudaErrorMpsMax(Clients|Connections)Reached|CUDA_ERROR_MPS_MAX_(CLIENTS|CONNECTIONS)_REACHED",
    re.IGNORECASE,
)
# Frameworks give the fatal errors of a card in sentences (PyTorch, Triton) or by their names (JAX, CuPy, Numba).
_SHARED = re.compile(
    r"an illegal memory access was encountered|an illegal instruction was encountered|device-side assert triggered"
    r"|the launch timed out and was terminated|hardware stack error|\bmisaligned address\b|invalid program counter"
    r"|operation not supported on global/shared address space|unspecified launch failure"
    r"|CUDA[^\n]*\bunknown error\b|\bCUFFT_(EXEC_FAILED|INTERNAL_ERROR)\b"
    r"|\bCU(SOLVER|SPARSE)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)\b"
    r"|\b(CUDA_ERROR_|cudaError_?)(ILLEGAL_?(ADDRESS|INSTRUCTION)|LAUNCH_?(FAILED|FAILURE|TIMEOUT)"
    r"|MISALIGNED_?ADDRESS|INVALID_?(PC|ADDRESS_?SPACE)|HARDWARE_?STACK_?ERROR|ASSERT|UNKNOWN)\b",
    re.IGNORECASE,
)
_SERVER = re.compile(
    r"between the MPS server and the MPS client failed|MPS client has been terminated by the server"
    r"|cudaErrorMps(RpcFailure|ClientTerminated)|CUDA_ERROR_MPS_(RPC_FAILURE|CLIENT_TERMINATED)",
    re.IGNORECASE,
)
_SHELLS: Final = 128
_CRASHES: Final = frozenset({*range(-64, 0), *(_SHELLS + number for number in (4, 6, 7, 8, 9, 11))})
"""The exit statuses of a process that a signal ended, also as shells and launchers pass them on."""
_SEARCHED = 8192


def evidence_of(verdict: Verdict, words: str) -> Evidence:
    """What an end says, by its verdict and the end of its output."""
    words = words[-_SEARCHED:]
    charged = verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED
    if charged and _ASSERTION.search(words):
        return Evidence.ASSERTION
    if charged and _CROWDED.search(words):
        return Evidence.CROWDED
    if charged and _UNREADY.search(words):
        return Evidence.UNREADY
    if charged and _SERVER.search(words):
        return Evidence.SERVER
    if charged and (_SHARED.search(words) or suspicion_in(words)):
        return Evidence.SHARED
    if not charged and verdict.outcome != worker_pb2.EXIT_OUTCOME_LOST:
        return Evidence.CLEAN
    return Evidence.CRASHED if verdict.exit_code in _CRASHES else Evidence.OWN


_OF_A_FAULT = (Evidence.SHARED, Evidence.SERVER, Evidence.ASSERTION)
_EVENTFUL = (*_OF_A_FAULT, Evidence.CRASHED)
"""Two such ends at once are an event, if one of them has a fault's error message."""


class Blame(Enum):
    """Who is charged for an end with a fault's error message."""

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
    cards: frozenset[str]
    name: str
    exited_s: float | None = None
    """When its process exited. Its end is judged later."""
    ended_s: float | None = None
    evidence: Evidence = Evidence.CLEAN
    event: "Event | None" = None
    off: bool = False
    """The worker ends its work on the card."""
    harmed_s: float | None = None
    """When the worker killed it with its work in flight."""

    def harms(self, now_s: float) -> bool:
        """Whether that may be why others end now. It may take a moment until its own end is known."""
        return self.harmed_s is not None and (self.ended_s is not None or now_s - self.harmed_s <= WINDOW_S)


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

    def joins(self, client: str, cards: Iterable[str], name: str, now_s: float) -> None:
        """A trial is about to run on these cards; `name` is for people."""
        for old, one in list(self._clients.items()):
            if one.ended_s is not None and now_s - one.ended_s > KEPT_S:
                del self._clients[old]
        self._clients[client] = _Client(cards=frozenset(cards), name=name)

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

    def harms(self, client: str, now_s: float) -> None:
        """The worker could not end a client's work, and kills it all the same: what that does to others is the
        worker's doing."""
        self._clients[client].harmed_s = now_s

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
        if not self.in_event(client):
            own.event = None
        evidence, event = own.evidence, own.event
        if event is not None:
            if not event.culprit and not event.of_worker and _is_cause(own, event.shown_s):
                event.culprit, event.name = client, own.name
        elif evidence is Evidence.SERVER:
            self._open(frozenset(), now_s)
        elif evidence in _EVENTFUL and any(
            (one.harms(now_s) or (one.ended_s is not None and one.evidence in _EVENTFUL))
            and Evidence.SHARED in (evidence, one.evidence)
            for other, one in self._at(own.cards, now_s).items()
            if other != client
        ):
            self._open(own.cards, now_s)

    def is_settled(self, client: str) -> bool:
        """Whether it is known who caused the event that a client ended of, or how everybody ended who was there."""
        event = self._clients[client].event
        if event is None or event.culprit or event.of_worker:
            return event is not None
        return not any(one.event is event and one.ended_s is None for one in self._clients.values())

    def server_failed(self, client: str, now_s: float) -> None:
        """The server turned out to be at fault, or gone, after a trial ended with a fault's error message."""
        own = self._clients[client]
        if own.event is None:
            self._open(own.cards, now_s)

    def restarts(self, now_s: float) -> Event:
        """The worker is about to restart the server: whatever that ends is the worker's doing."""
        event = Event(of_worker=True, shown_s=now_s)
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
        return own.ended_s is not None and self._at(own.cards, own.ended_s).keys() == {client}

    def in_event(self, client: str, *, within_s: float = KEPT_S) -> bool:
        """Whether a trial that has ended was there when a fault came, and ended of it: not hours later."""
        own = self._clients[client]
        late_s = 0.0 if own.event is None or own.ended_s is None else own.ended_s - own.event.shown_s
        return own.event is not None and late_s <= within_s

    def blame(self, client: str) -> tuple[Blame, str]:
        """Who is charged for the end of a trial, by what is known now, and the culprit's name if it is another."""
        event = self._clients[client].event
        if event is None or event.culprit == client or not self.in_event(client):
            return Blame.OWN, ""
        if event.of_worker:
            return Blame.WORKER, ""
        if event.culprit:
            return Blame.ANOTHER, event.name
        return Blame.NOBODY, ""

    def _at(self, cards: frozenset[str], now_s: float) -> dict[str, _Client]:
        """Those on one of these cards, or on any if there are none, now or shortly before."""
        return {
            client: one
            for client, one in self._clients.items()
            if not cards or not cards.isdisjoint(one.cards)
            if one.ended_s is None or now_s - one.ended_s <= WINDOW_S
        }

    def _open(self, cards: frozenset[str], now_s: float) -> None:
        """A fault came: it concerns all who run on these cards, or on any, and those who ended of it."""
        of_worker = any(one.harms(now_s) for one in self._at(cards, now_s).values())
        there = {
            client: one
            for client, one in self._at(cards, now_s).items()
            if one.event is None and not (one.off and one.harms(now_s))  # it had hung before
            if one.ended_s is None or one.evidence is not Evidence.CLEAN
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
        event = Event(culprit=culprit, name=name, shown_s=shown_s, of_worker=of_worker)
        self.faults += 1
        for one in there.values():
            one.event = event


def _is_cause(one: _Client, shown_s: float) -> bool:
    """Whether a client's end explains a fault that first ended another one at this time."""
    if one.evidence is Evidence.ASSERTION:
        return True
    return one.evidence is Evidence.CRASHED and one.ended_s is not None and one.ended_s <= shown_s
