"""The worker owns MPS on its machine, so that trials that share a GPU really run at the same time.

    no share yet → the control daemon runs (ours, or one that was there) → a server for the trials' user → clients

- **Who is authoritative:** the control daemon, for servers and clients; the process table, for whether it runs and
  whose it is. This module remembers nothing about it that it cannot read there again. A control daemon that it
  started has the worker's mark in its environment: after a `kill -9` at any line the next daemon recognizes it.
- It is started before the first trial with a share, and ended with the worker, unless others use it. One that runs
  already is used and left alone. A card's compute mode is never changed.
- Where an administrator runs one for the whole machine, all trials with GPUs are its clients, as they would be without
  Headrace.
- While a server starts, is at fault, is about to be restarted, or ends a client's work, no client joins.
- A client is taken off its card by the rules of `mps_ladder`, and an end in a fault is judged by those of `mps_rules`.
- If MPS cannot be used, or accepts no client in time, `auto` lets shares take turns on the card and says so; `on`
  starts none.
- A control daemon or a driver that hangs delays trials by one timeout. Neither blocks the worker.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace.bounds.sessions import TROUBLE
from headrace.grants import WHOLE
from headrace.mps import MEMORY_LIMIT, PIPE_DIRECTORY, ComputeMode, Facts, Mode, closed, look, obstacle
from headrace.v1 import worker_pb2
from headrace_worker.exits import Ending, Verdict
from headrace_worker.mps_control import ANSWER_S, MpsControl, MpsError
from headrace_worker.mps_ladder import POLL_S, Ladder
from headrace_worker.mps_rules import WINDOW_S, Blame, Company, Evidence, evidence_of
from headrace_worker.mps_server import MpsServer
from headrace_worker.patient import Patient

log = logging.getLogger(__name__)

CONTEXT_BYTES: Final = 768 << 20
"""What a CUDA context with its libraries may take on a card, beside what the program allocates. The limit of a
client counts it, the budget of a study does not."""
SETTLE_S: Final = 3.0
"""How long an end with a fault's error message waits for the ends of others before it is judged."""
READY_S: Final = 90.0
"""How long a trial waits for a server that starts, recovers from a fault, or is restarted."""
UNREADY: Final = 3
"""How often a trial is released because the server was not ready for it, before that is counted as a fault."""


class NotServedError(Exception):
    """A trial cannot share its card; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Whose processes these are."""

    worker: int
    trials: int
    may_enter: Callable[[Path], bool] = lambda _: True
    """Whether the trials' user may enter a folder."""


async def _nothing() -> None:
    pass


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
        users: Users,
        owned: Callable[[], Collection[str]] = frozenset,
        ask_to_leave: Callable[[Collection[str], str], None] = lambda *_: None,
        let_stay: Callable[[Collection[str]], None] = lambda *_: None,
        end_idle: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`owned` names the cards of large jobs, in whose bubbles trials run. `ask_to_leave` asks clients to save and
        leave; it is repeated, and `let_stay` takes it back. `end_idle` ends the processes that wait for another
        trial."""
        self._mode = mode
        self._control = control
        self._pipe = pipe
        self._cards = {one.index: one for one in devices if one.kind == worker_pb2.DEVICE_KIND_GPU}
        self._users = users
        self._owned = owned
        self._end_idle = end_idle
        self._company = Company()
        self._server = MpsServer(control, users.trials)
        self._ladder = Ladder(
            control,
            self._server,
            self._company,
            uid=users.worker,
            ask_to_leave=ask_to_leave,
            let_stay=let_stay,
            end_idle=end_idle,
        )
        uuids = [one.uuid for one in self._cards.values()]
        self._looking = Patient(lambda: look(pipe, environ, uuids))
        self._unready: Counter[str] = Counter()
        # Whether an administrator runs it for all programs of this machine.
        self._is_site_wide = False
        self._why_not = ""
        # Whether a trial with a share has come.
        self._asked = False
        # Why some cards are not shared.
        self._closed = ""

    # Before a trial starts.

    async def check(self) -> bool:
        """Finds out how trials can share GPUs here, before any is placed, and marks devices that cannot be shared.
        Returns whether trials with whole GPUs keep the worker's CUDA_MPS_PIPE_DIRECTORY: not if it names the place of
        the worker's own. Raises `ValueError` if MPS is required and cannot be used."""
        if self._mode is Mode.OFF or not self._cards:
            return True
        try:
            facts = await self._facts()
        except MpsError as error:
            self._why_not = str(error)
            return True
        modes = {one.uuid: one.mode for one in facts.cards}
        for one in self._cards.values():
            exclusive = modes.get(one.uuid, ComputeMode.DEFAULT) is not ComputeMode.DEFAULT
            one.unshared |= exclusive and not self._is_site_wide
        shared = [one.uuid for one in self._cards.values() if not one.unshared]
        self._control.serves(shared)
        self._closed = "; ".join(map(str, closed(facts)))
        found = self._obstacle(facts)
        self._why_not = "" if found is None or not shared else found
        if self._why_not and self._mode is Mode.ON:
            raise ValueError(f"--mps on: {self._why_not}")
        return self._is_site_wide

    async def join(self, client: str, name: str, grant: worker_pb2.Grant) -> dict[str, str]:
        """Makes MPS ready for a trial; returns what its environment needs, nothing for one that gets no share. Raises
        `NotServedError`."""
        cards = [self._cards[slot] for slot in grant.slots if slot in self._cards]
        if not cards or self._mode is Mode.OFF:
            return {}
        if not 0 < grant.milli < WHOLE:
            if self._is_site_wide:
                self._company.joins(client, [one.uuid for one in cards], name, _now())
            return {}
        self._asked = True
        card = cards[0]
        if card.uuid in self._owned():
            raise NotServedError(
                f"GPU {card.uuid} belongs to a large job now, and is shared only in that job's bubbles. "
                "The trial is tried again elsewhere"
            )
        try:
            facts = await self._facts()
            if (found := self._obstacle(facts)) is not None:
                return self._without(found)
            await self._server_ready()
        except MpsError as error:
            return self._without(f"the MPS control daemon in {self._pipe}: {error}")
        self._why_not = ""
        self._company.joins(client, [card.uuid], name, _now())
        return {PIPE_DIRECTORY: str(self._pipe), **_limit(card, grant)}

    async def _facts(self) -> Facts:
        """What the machine has. Raises `MpsError`."""
        try:
            found = await self._looking.result(ANSWER_S)
        except TimeoutError:
            raise MpsError("the driver does not answer") from None
        self._is_site_wide = found.control is not None and found.control.is_site_wide
        return found

    def _obstacle(self, facts: Facts) -> str | None:
        found = obstacle(
            facts,
            uid=self._users.worker,
            trials_uid=self._users.trials,
            enters=self._users.may_enter(self._pipe),
        )
        return None if found is None else str(found)

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
        while waits_for := (self._ladder.keeps_waiting or await self._lacks()):
            if _now() >= ends_at:
                raise MpsError(f"it accepts no client: {waits_for}")
            await self._end_idle()  # a server at fault waits for them too
            await asyncio.sleep(POLL_S)

    async def _lacks(self) -> str:
        """What the server waits for. A control daemon that dies meanwhile is replaced. Raises `MpsError`."""
        try:
            return await self._server.lacks()
        except MpsError:
            await asyncio.sleep(POLL_S)
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
            self._ladder.news.set()

    # A trial ends.

    def hurry(self) -> None:
        """The worker leaves."""
        self._ladder.hurry()

    async def let_go(self, client: str, pids: Collection[int], *, exited: bool) -> None:
        """Takes a client's processes off the card, before they are signalled. `exited`: the trial's own process has
        ended, and these are what it left behind."""
        if self._company.has(client):
            if not exited:
                self._company.taken_off(client)
            await self._ladder.take_off(client, pids)

    def ending_of(self, client: str, ending: Ending | None) -> Ending | None:
        """How a trial was told to end. One that was taken off its card has no last word: what it says then is CUDA's
        error."""
        if ending is None or not self._company.was_taken_off(client):
            return ending
        return replace(ending, decided=False)

    async def judged(self, client: str, verdict: Verdict, words: str) -> Verdict:
        """The verdict on a trial, considering what happened to the others on its card."""
        if not self._company.has(client):
            return verdict
        evidence = evidence_of(verdict, words)
        self._company.ends(client, evidence, _now())
        self._ladder.news.set()
        if self._company.was_taken_off(client):
            return await self._of_hung(client, verdict)
        name = self._company.name_of(client)
        match evidence:
            case Evidence.CROWDED:  # twice, and it gets a card of its own, without MPS
                return _released(
                    verdict, "the MPS server of its GPU has no room for more clients", counted=True
                )
            case Evidence.UNREADY:
                self._unready[name] += 1
                counted = self._unready[name] > UNREADY
                return _released(verdict, "the MPS server of its GPU was not ready for it", counted=counted)
            case Evidence.SHARED | Evidence.SERVER:
                if evidence is Evidence.SERVER or not self._company.was_alone(client):
                    await self._settle(client)
            case Evidence.CRASHED if self._company.in_event(client, within_s=WINDOW_S):
                await self._settle(client)
            case _:
                del self._unready[name]
                return verdict
        return await self._blamed(client, verdict)

    async def _of_hung(self, client: str, verdict: Verdict) -> Verdict:
        """The verdict on a trial that the worker took off its card. If it had been silent for too long because the
        server failed, that is not its fault."""
        hung = verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED
        if hung and (self._company.in_event(client) or await self._server.has_failed()):
            return _released(verdict, "the MPS server of its GPU had failed", counted=False)
        return verdict

    async def _blamed(self, client: str, verdict: Verdict) -> Verdict:
        blame, culprit = self._company.blame(client)
        if blame is Blame.OWN:
            return verdict
        await self._end_idle()  # they have lost their context with the server
        causes = {
            Blame.ANOTHER: f"{culprit} ended the MPS server of its GPU",
            Blame.NOBODY: "the MPS server of its GPU failed, and it is not known which of its clients caused that",
            Blame.WORKER: "the worker restarted the MPS server of its GPU, or killed a client that it could not end",
        }
        return _released(verdict, causes[blame], counted=blame is Blame.NOBODY)

    async def _settle(self, client: str) -> None:
        """Waits until it is known whether a fault concerns others, and who caused it or how they all ended; at most
        for SETTLE_S."""
        ends_at = _now() + SETTLE_S
        while _now() < ends_at and not self._company.is_settled(client):
            if not self._company.in_event(client) and await self._server.has_failed():
                self._company.server_failed(client, _now())
            await self._ladder.wait_for_news()

    # What others see.

    @property
    def words(self) -> str:
        """How trials share GPUs here, for people; empty if there is nothing to say."""
        told = [self._closed] * bool(self._closed)
        running = len(self._company.running)
        if self._server.is_used and (running or not self._why_not):
            found = [f"MPS serves {_counted(running, 'trial')}"]
            found += [f"{_counted(self._company.faults, 'fault')} of its server"] * bool(self._company.faults)
            found += [_counted(self._ladder.restarts, "restart")] * bool(self._ladder.restarts)
            told.append(", ".join(found))
        if self._why_not:
            take = "take" if self._asked else "would take"
            told.append(f"shares of a GPU {take} turns, without MPS: {self._why_not}")
        return TROUBLE.kept("; ".join(told))

    def figures(self) -> dict[str, float]:
        """For metrics. Safe in any thread."""
        return {
            "mps_clients": len(self._company.running),
            "mps_faults": self._company.faults,
            "mps_restarts": self._ladder.restarts,
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


def _limit(card: worker_pb2.Device, grant: worker_pb2.Grant) -> dict[str, str]:
    """The hard limit of a client's memory: its budget and a context, or its share of the card if that is less. By
    UUID: the server may count the machine's cards, and the client only its own."""
    if not grant.memory_bytes:
        return {}
    share = card.memory_bytes * grant.milli // WHOLE
    limit = max(grant.memory_bytes, min(grant.memory_bytes + CONTEXT_BYTES, share))
    return {MEMORY_LIMIT: f"{card.uuid}={limit >> 20}M"}


def _released(verdict: Verdict, why: str, *, counted: bool) -> Verdict:
    """It ended, and nobody is charged; `counted`: the scheduler counts that it was there."""
    error = TROUBLE.kept(f"{why}; the program said: {verdict.error}")
    return replace(verdict, outcome=worker_pb2.EXIT_OUTCOME_RELEASED, error=error, shared_fault=counted)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _now() -> float:
    return asyncio.get_running_loop().time()
