"""The worker owns MPS on its machine, so that trials that share a GPU really run at the same time.

    no share yet → the control daemon runs (ours, or one that was there) → a server for the trials' user → clients

- **Who is authoritative:** the control daemon, for servers and clients; the process table, for whether it runs and
  whose it is. This module remembers nothing about it that it cannot read there again. A control daemon that it
  started has the worker's mark in its environment: after a `kill -9` at any line the next daemon recognizes it.
- It is started before the first trial with a share, and ended with the worker, unless others use it. One that runs
  already is used and left alone. A card's compute mode is never changed.
- While a server is at fault, or is about to be restarted, no client joins.
- A client is ended rung by rung, and an end in a fault is judged, by the rules of `mps_rules`.
- If MPS cannot be used, `auto` lets shares take turns on the card and says so; `on` starts none.
- A control daemon that hangs delays a trial by at most a few timeouts. It never blocks the worker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.bounds.sessions import TROUBLE
from headrace.grants import WHOLE
from headrace.mps import (
    MEMORY_LIMIT,
    PIPE_DIRECTORY,
    Facts,
    Mode,
    card_obstacle,
    look,
    obstacle,
)
from headrace.v1 import worker_pb2
from headrace_worker.exits import Verdict
from headrace_worker.mps_control import ANSWER_S, MpsControl, MpsError
from headrace_worker.mps_rules import LADDER, Blame, Company, Evidence, Rung, Step, evidence_of
from headrace_worker.mps_server import MpsServer

log = logging.getLogger(__name__)

CONTEXT_BYTES: Final = 768 << 20
"""What a CUDA context with its libraries may take on a card, beside what the program allocates. The limit of a
client counts it, the budget of a study does not."""
SETTLE_S: Final = 3.0
"""How long an end in the words of a fault waits for the ends of others before it is judged."""
SHOW_S: Final = 0.5
"""How long ends that a fault caused at the same time may take to show, one after another."""
READY_S: Final = 30.0
"""How long a trial waits for a server that recovers from a fault."""
DRAIN_S: Final = 60.0
"""How long the others may take to save and leave before the server is restarted."""
_POLL_S: Final = 0.25
_RESTARTS: Final = "its server is about to be restarted"


class NotServedError(Exception):
    """A trial cannot share its card; the text says why and what to do."""


class Mps:
    """The control daemon of one worker, and its clients."""

    def __init__(
        self,
        mode: Mode,
        control: MpsControl,
        *,
        pipe: Path,
        environ: Mapping[str, str],
        devices: Sequence[worker_pb2.Device],
        uid: int,
        trials_uid: int,
        owned: Callable[[], Collection[str]] = frozenset,
        ask_to_leave: Callable[[Collection[str], str], None] = lambda *_: None,
        end_idle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`owned` names the cards of large jobs, in whose bubbles trials run. `ask_to_leave` asks clients to save and
        leave; it is repeated. `end_idle` ends the processes that wait for another trial."""
        self._mode = mode
        self._control = control
        self._pipe = pipe
        self._environ = environ
        self._cards = {one.index: one.uuid for one in devices if one.kind == worker_pb2.DEVICE_KIND_GPU}
        self._uid, self._trials_uid = uid, trials_uid
        self._owned = owned
        self._ask_to_leave = ask_to_leave
        self._end_idle = end_idle
        self._company = Company()
        self._restarting = asyncio.Lock()
        self._news = asyncio.Event()
        self._leaving: set[str] = set()
        self._server = MpsServer(control, trials_uid)
        self._why_not = ""
        # Why cards are not shared at all, with MPS or without.
        self._closed = ""
        self._restarts = 0

    # Before a trial starts.

    async def check(self) -> str:
        """Says why trials cannot share GPUs here, before any is placed; nothing if they can. Raises `ValueError` if
        MPS is required."""
        if self._mode is Mode.OFF or not self._cards:
            return ""
        try:
            facts = await self._facts()
        except MpsError as error:
            self._why_not = str(error)
        else:
            found = obstacle(facts, uid=self._uid, trials_uid=self._trials_uid)
            self._why_not = "" if found is None else str(found)
        if (why := self._why_not or self._closed) and self._mode is Mode.ON:
            raise ValueError(f"--mps on: {why}")
        return self.words

    async def join(self, client: str, name: str, grant: worker_pb2.Grant) -> dict[str, str]:
        """Makes MPS ready for a trial; returns what its environment needs, nothing for one that gets no share. Raises
        `NotServedError`."""
        if (
            not 0 < grant.milli < WHOLE
            or len(grant.slots) != 1
            or (slot := grant.slots[0]) not in self._cards
        ):
            return {}
        card = self._cards[slot]
        if card in self._owned():
            raise NotServedError(
                f"GPU {card} belongs to a large job now, and is shared only in that job's bubbles. "
                "The trial is tried again elsewhere"
            )
        try:
            facts = await self._facts()
            if (
                closed := next((card_obstacle(one) for one in facts.cards if one.uuid == card), None)
            ) is not None:
                raise NotServedError(str(closed))
            if self._mode is Mode.OFF:
                return {}
            if (found := obstacle(facts, uid=self._uid, trials_uid=self._trials_uid)) is not None:
                return self._without(str(found))
            await self._server_ready()
        except MpsError as error:
            return self._without(f"the MPS control daemon in {self._pipe}: {error}")
        self._why_not = ""
        self._company.joins(client, card, name, _now())
        limit_mib = (grant.memory_bytes + CONTEXT_BYTES) >> 20
        # By UUID: the server may count the machine's cards, and the client only its own.
        limit = {MEMORY_LIMIT: f"{card}={limit_mib}M"} if grant.memory_bytes else {}
        return {PIPE_DIRECTORY: str(self._pipe), **limit}

    async def _facts(self) -> Facts:
        """What the machine has. A driver that hangs is not waited for. Raises `MpsError`."""
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await asyncio.to_thread(look, self._pipe, self._environ, list(self._cards.values()))
        except TimeoutError:
            raise MpsError("the driver does not answer") from None
        self._closed = "; ".join(str(why) for why in map(card_obstacle, found.cards) if why is not None)
        return found

    def _without(self, why: str) -> dict[str, str]:
        if self._mode is Mode.ON:
            self._why_not = why
            raise NotServedError(why)
        if why != self._why_not:
            log.warning("shares of a GPU take turns, because MPS cannot be used: %s", why)
        self._why_not = why
        return {}

    async def _server_ready(self) -> None:
        """A server of the trials' user accepts clients. Raises `MpsError`, or `NotServedError` if it takes too
        long."""
        ends_at = _now() + READY_S
        while waits_for := (_RESTARTS if self._leaving else await self._lacks()):
            if _now() >= ends_at:
                raise NotServedError(f"the MPS control daemon in {self._pipe} accepts no client: {waits_for}")
            await asyncio.sleep(_POLL_S)

    async def _lacks(self) -> str:
        """What the server waits for. A control daemon that dies meanwhile is replaced. Raises `MpsError`."""
        try:
            return await self._server.lacks()
        except MpsError:
            await asyncio.sleep(_POLL_S)
            if self._control.found is not None:
                raise
            return await self._server.lacks()

    def has(self, client: str) -> bool:
        """Whether a trial is a client that runs."""
        return self._company.has(client)

    def exits(self, client: str) -> None:
        """A trial's process has exited; may be repeated."""
        self._company.exits(client, _now())

    def leave(self, client: str) -> None:
        """A trial is over, or did not start after all; may be repeated."""
        if self._company.has(client):
            self._company.ends(client, Evidence.CLEAN, _now())
            self._news.set()

    # A trial ends.

    async def let_go(self, client: str, pids: Collection[int]) -> None:
        """Takes a client's processes off the card, before they are signalled: down the ladder of `mps_rules`. Returns
        when they may be killed."""
        if not self._company.has(client):
            return
        rung = LADDER[Rung.ASKED, Step.TIME_IS_OVER]
        try:
            while rung is not Rung.KILL:
                step = await self._on(rung, client, pids)
                if step is not Step.DONE:
                    log.warning("%s: %s: %s", self._company.name_of(client), rung.name, step.name)
                rung = LADDER[rung, step]
        finally:
            self._leaving.discard(client)

    async def _on(self, rung: Rung, client: str, pids: Collection[int]) -> Step:
        try:
            match rung:
                case Rung.TERMINATE:
                    return await self._terminate(pids)
                case Rung.DRAIN:
                    return await self._drain(client)
                case _:
                    return await self._restart(pids)
        except MpsError as error:
            log.warning("MPS: %s", error)
            return Step.FAILED if self._administers else Step.FORBIDDEN

    @property
    def _administers(self) -> bool:
        """Whether the control daemon takes orders from this worker: another user's may not."""
        return (found := self._control.found) is None or self._uid in {0, found.uid}

    async def _terminate(self, pids: Collection[int]) -> Step:
        for server, client in await self._server.clients_among(pids):
            await self._control.terminate_client(server, client)
        return Step.DONE

    async def _drain(self, client: str) -> Step:
        """Asks all other clients to save and leave: a server that is restarted ends all of them, on all cards."""
        self._leaving.add(client)
        why = f"MPS is restarted, because {self._company.name_of(client)} cannot be taken off its GPU"
        log.warning("%s", why)
        ends_at = _now() + DRAIN_S
        while others := self._company.running - self._leaving:
            if _now() >= ends_at:
                return Step.TIME_IS_OVER
            self._ask_to_leave(others, why)
            await self._wait_for_news(_POLL_S)
        return Step.DONE

    async def _restart(self, pids: Collection[int]) -> Step:
        async with self._restarting:
            servers = {server for server, _ in await self._server.clients_among(pids)}
            if servers:
                self._company.restarts()
                self._restarts += 1
            for server in servers:
                await self._control.shut_down(server)
            await self._end_poisoned()
        return Step.DONE

    async def judged(self, client: str, verdict: Verdict, words: str) -> Verdict:
        """The verdict on a trial, after a look at what happened to the others on its card."""
        if not self._company.has(client):
            return verdict
        evidence = evidence_of(verdict, words)
        was_there = self._company.in_event(client)
        self._company.ends(client, evidence, _now())
        self._news.set()
        if evidence is Evidence.UNSERVED:
            error = f"the MPS server did not accept it: {verdict.error}"
            return replace(verdict, outcome=worker_pb2.EXIT_OUTCOME_UNREACHED, error=TROUBLE.kept(error))
        crashed_of_it = evidence is Evidence.CRASHED and was_there
        if evidence is not Evidence.SHARED and not crashed_of_it:
            return verdict
        if not self._company.was_alone(client):
            await self._settle(client)
        blame, culprit = self._company.blame(client)
        if blame is Blame.OWN:
            return verdict
        await self._end_poisoned()
        causes = {
            Blame.ANOTHER: f"{culprit} ended the MPS server of its GPU",
            Blame.NOBODY: "the MPS server of its GPU failed, and it is not known which of its clients caused that",
            Blame.WORKER: "the worker restarted the MPS server of its GPU",
        }
        return replace(
            verdict,
            outcome=worker_pb2.EXIT_OUTCOME_RELEASED,
            error=TROUBLE.kept(f"{causes[blame]}; the program said: {verdict.error}"),
            shared_fault=blame is Blame.NOBODY,
        )

    async def _settle(self, client: str) -> None:
        """Waits until it is known whether a fault concerns others, and how those ended who have exited; at most for
        SETTLE_S."""
        began_at = _now()
        while _now() < began_at + SETTLE_S:
            if not self._company.in_event(client) and await self._server.has_failed():
                self._company.server_failed(client, _now())
            shown = _now() >= began_at + SHOW_S
            if shown and self._company.in_event(client) and self._company.is_settled(client):
                return
            await self._wait_for_news(_POLL_S)

    async def _end_poisoned(self) -> None:
        """Processes that wait for another trial have lost their context with the server."""
        if self._end_idle is not None:
            await self._end_idle()

    async def _wait_for_news(self, most_s: float) -> None:
        self._news.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), most_s)

    # What others see.

    @property
    def words(self) -> str:
        """How trials share GPUs here, for people; empty if none has."""
        told = [f"no trial can share a GPU: {self._closed}"] * bool(self._closed)
        if self._why_not:
            told.append(f"shares of a GPU take turns, without MPS: {self._why_not}")
        elif self._server.is_used:
            found = [f"MPS serves {_counted(len(self._company.running), 'trial')}"]
            found += [f"{_counted(self._company.faults, 'fault')} of its server"] * bool(self._company.faults)
            found += [_counted(self._restarts, "restart")] * bool(self._restarts)
            told.append(", ".join(found))
        return TROUBLE.kept("; ".join(told))

    def figures(self) -> dict[str, float]:
        """For metrics. Safe in any thread."""
        return {
            "mps_clients": len(self._company.running),
            "mps_faults": self._company.faults,
            "mps_restarts": self._restarts,
        }

    async def close(self) -> None:
        """Ends the control daemon, if it is ours and nobody uses it."""
        if not await asyncio.to_thread(lambda: self._control.is_ours):
            return
        try:
            if held := await self._server.end_control():
                log.info("MPS: %d clients of others remain, so its control daemon does too", held)
        except (MpsError, TimeoutError) as error:
            log.warning("MPS: its control daemon did not end: %s", error)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _now() -> float:
    return asyncio.get_running_loop().time()
