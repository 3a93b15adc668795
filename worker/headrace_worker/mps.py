"""The worker owns MPS on its machine, so that trials that share a GPU really run at the same time.

    no share yet → the control daemon runs (ours, or one that was there) → a server for the trials' user → clients

- **Who is authoritative:** the control daemon, for servers and clients; the process table, for whether it runs and
  whose it is. This module remembers nothing about it that it cannot read there again. A control daemon that it
  started has the worker's mark in its environment: after a `kill -9` at any line the next daemon recognizes it.
- It is started before the first trial with a share, and ended with the worker, unless others use it. One that runs
  already is used and left alone. A card's compute mode is never changed. Where an administrator runs one for the whole
  machine, trials with whole cards find it as they would without Headrace.
- While a server is at fault, or is about to be restarted, no client joins.
- A client is ended rung by rung, and an end in a fault is judged, by the rules of `mps_rules`.
- If MPS cannot be used, or accepts no client in time, `auto` lets shares take turns on the card and says so; `on`
  starts none.
- A control daemon or a driver that hangs delays trials by one timeout. Neither blocks the worker.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.bounds.sessions import TROUBLE
from headrace.grants import WHOLE
from headrace.mps import (
    MEMORY_LIMIT,
    OF_MIG,
    PIPE_DIRECTORY,
    Facts,
    Mode,
    card_obstacle,
    is_instance,
    look,
    obstacle,
)
from headrace.v1 import worker_pb2
from headrace_worker.exits import Ending, Verdict
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
_LOOK_S: Final = 2.0
"""How often the card is looked at while it is drained."""
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
        let_stay: Callable[[Collection[str]], None] = lambda *_: None,
        end_idle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`owned` names the cards of large jobs, in whose bubbles trials run. `ask_to_leave` asks clients to save and
        leave; it is repeated, and `let_stay` takes it back. `end_idle` ends the processes that wait for another
        trial."""
        self._mode = mode
        self._control = control
        self._pipe = pipe
        self._environ = environ
        self._cards = {one.index: one.uuid for one in devices if one.kind == worker_pb2.DEVICE_KIND_GPU}
        self._uid, self._trials_uid = uid, trials_uid
        self._owned = owned
        self._ask_to_leave = ask_to_leave
        self._let_stay = let_stay
        self._end_idle = end_idle
        self._company = Company()
        self._restarting = asyncio.Lock()
        self._news = asyncio.Event()
        self._leaving: set[str] = set()
        self._hurries = False
        self._looking: asyncio.Future[Facts] | None = None
        self._driver_hangs = False
        self._server = MpsServer(control, trials_uid)
        self._why_not = ""
        # Whether a trial with a share has come.
        self._asked = False
        # Why cards are not shared at all, with MPS or without.
        self._closed = ""
        self._restarts = 0

    # Before a trial starts.

    async def check(self) -> bool:
        """Finds out whether trials can share GPUs here, before any is placed. Returns whether trials with whole GPUs
        keep the worker's CUDA_MPS_PIPE_DIRECTORY: not if it names the place of the worker's own. Raises `ValueError`
        if MPS is required and cannot be used."""
        if self._mode is Mode.OFF or not self._cards:
            return True
        site_wide = False
        try:
            facts = await self._facts()
        except MpsError as error:
            self._why_not = str(error)
        else:
            found = obstacle(facts, uid=self._uid, trials_uid=self._trials_uid)
            if found is None and all(map(is_instance, self._cards.values())):
                found = OF_MIG
            self._why_not = "" if found is None else str(found)
            site_wide = found is None and facts.control is not None and facts.control.is_site_wide
        if (why := self._why_not or self._closed) and self._mode is Mode.ON:
            raise ValueError(f"--mps on: {why}")
        return site_wide

    async def join(self, client: str, name: str, grant: worker_pb2.Grant) -> dict[str, str]:
        """Makes MPS ready for a trial; returns what its environment needs, nothing for one that gets no share. Raises
        `NotServedError`."""
        if (
            not 0 < grant.milli < WHOLE
            or len(grant.slots) != 1
            or (slot := grant.slots[0]) not in self._cards
        ):
            return {}
        if self._mode is Mode.OFF:
            return {}
        self._asked = True
        card = self._cards[slot]
        if is_instance(card):
            return self._without(str(OF_MIG))
        if card in self._owned():
            raise NotServedError(
                f"GPU {card} belongs to a large job now, and is shared only in that job's bubbles. "
                "The trial is tried again elsewhere"
            )
        try:
            facts = await self._facts()
            found = obstacle(facts, uid=self._uid, trials_uid=self._trials_uid)
            served = found is None and facts.control is not None and facts.control.is_site_wide
            one = next((one for one in facts.cards if one.uuid == card), None)
            if one is not None and (closed := card_obstacle(one, served=served)) is not None:
                raise NotServedError(str(closed))
            if found is not None:
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
        """What the machine has. A driver that hangs is not waited for, and is not asked again until it answers. Raises
        `MpsError`."""
        if self._looking is None or self._looking.done():
            self._looking = _in_thread(lambda: look(self._pipe, self._environ, list(self._cards.values())))
            patience_s = ANSWER_S
        else:
            patience_s = 0.0 if self._driver_hangs else ANSWER_S
        try:
            found = await asyncio.wait_for(asyncio.shield(self._looking), patience_s)
        except TimeoutError:
            self._driver_hangs = True
            raise MpsError("the driver does not answer") from None
        self._driver_hangs = False
        served = found.control is not None and found.control.is_site_wide
        closed = [card_obstacle(one, served=served) for one in found.cards]
        self._closed = "; ".join(str(why) for why in closed if why is not None)
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
        """A server of the trials' user accepts clients. Raises `MpsError`, also if it takes too long."""
        ends_at = _now() + READY_S
        while waits_for := (_RESTARTS if self._leaving else await self._lacks()):
            if _now() >= ends_at:
                raise MpsError(f"it accepts no client: {waits_for}")
            await self._end_poisoned()  # a server at fault waits for them too
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

    def hurry(self) -> None:
        """The worker leaves: there is no time to drain a card for one that cannot be taken off it."""
        self._hurries = True

    async def let_go(self, client: str, pids: Collection[int], *, exited: bool) -> None:
        """Takes a client's processes off the card, before they are signalled: down the ladder of `mps_rules`. Returns
        when they may be killed. `exited`: the trial's own process has ended, and these are what it left behind."""
        if not self._company.has(client):
            return
        if not exited:
            self._company.taken_off(client)
        rung = LADDER[Rung.ASKED, Step.TIME_IS_OVER]
        try:
            while rung is not Rung.KILL:
                step = await self._on(rung, client, pids)
                if step not in (Step.DONE, Step.GONE):
                    log.warning("%s: %s: %s", self._company.name_of(client), rung.name, step.name)
                rung = LADDER[rung, step]
        finally:
            if client in self._leaving:
                self._leaving.discard(client)
                if not self._leaving:
                    self._let_stay(self._company.running)

    async def _on(self, rung: Rung, client: str, pids: Collection[int]) -> Step:
        try:
            match rung:
                case Rung.TERMINATE:
                    return await self._terminate(pids)
                case Rung.DRAIN:
                    return await self._drain(client, pids)
                case _:
                    return await self._restart(pids)
        except MpsError as error:
            log.warning("MPS: %s", error)
            return Step.FAILED if self._administers else Step.POWERLESS

    @property
    def _administers(self) -> bool:
        """Whether the control daemon is there and takes orders from this worker: another user's may not."""
        found = self._control.found
        return found is not None and self._uid in {0, found.uid} and not self._control.hangs

    async def _terminate(self, pids: Collection[int]) -> Step:
        clients = await self._server.clients_among(pids)
        for server, client in clients:
            try:
                await self._control.terminate_client(server, client)
            except MpsError:
                if await self._server.clients_among({client}):
                    raise
        return Step.DONE if clients else Step.GONE

    async def _drain(self, client: str, pids: Collection[int]) -> Step:
        """Asks all other clients to save and leave: a server that is restarted ends all of them, on all cards."""
        self._leaving.add(client)
        why = f"MPS is restarted, because {self._company.name_of(client)} cannot be taken off its GPU"
        log.warning("%s", why)
        ends_at = _now() + DRAIN_S
        looks_at = _now() + _LOOK_S
        while others := self._company.running - self._leaving:
            if self._hurries or _now() >= ends_at:
                return Step.TIME_IS_OVER
            if _now() >= looks_at:
                if not await self._server.clients_among(pids):
                    return Step.GONE
                looks_at = _now() + _LOOK_S
            self._ask_to_leave(others, why)
            await self._wait_for_news(_POLL_S)
        return Step.DONE

    async def _restart(self, pids: Collection[int]) -> Step:
        async with self._restarting:
            servers = {server for server, _ in await self._server.clients_among(pids)}
            if not servers:
                return Step.GONE
            event = self._company.restarts()
            try:
                for server in servers:
                    await self._control.shut_down(server)
            except MpsError:
                self._company.withdraw(event)
                raise
            self._restarts += 1
            await self._end_poisoned()
        return Step.DONE

    def ending_of(self, client: str, ending: Ending | None) -> Ending | None:
        """How a trial was told to end. One that was taken off its card has no last word: what it says then is CUDA's
        error."""
        if ending is None or not self._company.was_taken_off(client):
            return ending
        return replace(ending, decided=False)

    async def judged(self, client: str, verdict: Verdict, words: str) -> Verdict:
        """The verdict on a trial, after a look at what happened to the others on its card."""
        if not self._company.has(client):
            return verdict
        evidence = evidence_of(verdict, words)
        was_there = self._company.in_event(client, _now())
        self._company.ends(client, evidence, _now())
        self._news.set()
        if self._company.was_taken_off(client):
            return verdict
        if evidence is Evidence.UNSERVED:
            # Twice, and it gets a card of its own, without MPS.
            return _released(verdict, "the MPS server of its GPU did not accept it", counted=True)
        crashed_of_it = evidence is Evidence.CRASHED and was_there
        if evidence not in (Evidence.SHARED, Evidence.SERVER) and not crashed_of_it:
            return verdict
        if evidence is Evidence.SERVER or not self._company.was_alone(client):
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
        return _released(verdict, causes[blame], counted=blame is Blame.NOBODY)

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
            take = "take" if self._asked else "would take"
            told.append(f"shares of a GPU {take} turns, without MPS: {self._why_not}")
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


def _released(verdict: Verdict, why: str, *, counted: bool) -> Verdict:
    """It ended, and nobody is charged; `counted`: the scheduler counts that it was there."""
    error = TROUBLE.kept(f"{why}; the program said: {verdict.error}")
    return replace(verdict, outcome=worker_pb2.EXIT_OUTCOME_RELEASED, error=error, shared_fault=counted)


def _in_thread(call: Callable[[], Facts]) -> "asyncio.Future[Facts]":
    """Runs it in a thread of its own, which may hang: it takes none from the pool, and holds up no exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Facts] = loop.create_future()

    def tell(result: Facts | Exception) -> None:
        if done.done():
            return
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result(result)

    def run() -> None:
        try:
            result: Facts | Exception = call()
        except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
            result = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result)

    threading.Thread(target=run, name="look at the GPUs", daemon=True).start()
    return done


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _now() -> float:
    return asyncio.get_running_loop().time()
