"""Takes a client of MPS off its card before it is killed, one rung after another (`mps_rules.LADDER`).

A server that is restarted ends all its clients, on all cards. So the others are asked to save and leave first, and it
is not restarted while somebody else uses it: another worker, or another program of the machine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

import psutil

from headrace_worker.mps_control import MpsControl, MpsError
from headrace_worker.mps_rules import LADDER, Company, Rung, Step
from headrace_worker.mps_server import MpsServer

log = logging.getLogger(__name__)

DRAIN_S: Final = 60.0
"""How long the others may take to save and leave before the server is restarted."""
POLL_S: Final = 0.25
_CHECK_S: Final = 2.0
"""How often the server is asked while a card is drained."""


class Ladder:
    """How clients leave the cards of one worker."""

    def __init__(
        self,
        control: MpsControl,
        server: MpsServer,
        company: Company,
        *,
        uid: int,
        ask_to_leave: Callable[[Collection[str], str], None],
        let_stay: Callable[[Collection[str]], None],
        end_idle: Callable[[], Awaitable[None]],
    ) -> None:
        self._control = control
        self._server = server
        self._company = company
        self._uid = uid
        self._ask_to_leave = ask_to_leave
        self._let_stay = let_stay
        self._end_idle = end_idle
        self._restarting = asyncio.Lock()
        self._hurries = False
        self._draining: set[str] = set()
        self._ending = 0
        self.news = asyncio.Event()
        """Set when a client has ended."""
        self.restarts = 0

    @property
    def keeps_waiting(self) -> str:
        """Why no client may join now; empty if any may. While one is taken off, the server accepts none."""
        if self._draining:
            return "its server is about to be restarted"
        return "it ends the work of a trial" if self._ending else ""

    def hurry(self) -> None:
        """The worker leaves: there is no time to drain a card for one that cannot be taken off it."""
        self._hurries = True

    async def take_off(self, client: str, pids: Collection[int]) -> None:
        """Takes these processes of a client off the card. Returns when they may be killed."""
        rung, step = Rung.TERMINATE, Step.DONE
        try:
            while rung is not Rung.KILL:
                step = await self._on(rung, client, pids)
                if step not in (Step.DONE, Step.GONE):
                    log.warning("%s: %s: %s", self._company.name_of(client), rung.name, step.name)
                rung = LADDER[rung, step]
        finally:
            if step not in (Step.DONE, Step.GONE):
                self._company.harms(client, _now())
            if client in self._draining:
                self._draining.discard(client)
                if not self._draining:
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
            return Step.FAILED if self._obeys else Step.POWERLESS

    @property
    def _obeys(self) -> bool:
        """Whether the control daemon is there and takes orders from this worker: another user's may not."""
        found = self._control.found
        return found is not None and self._uid in {0, found.uid} and not self._control.hangs

    async def _terminate(self, pids: Collection[int]) -> Step:
        self._ending += 1
        try:
            clients = await self._server.clients_among(pids)
            for server, pid in clients:
                try:
                    await self._control.terminate_client(server, pid)
                except MpsError:
                    if await self._server.clients_among({pid}):
                        raise
        finally:
            self._ending -= 1
        return Step.DONE if clients else Step.GONE

    async def _drain(self, client: str, pids: Collection[int]) -> Step:
        """Asks all other clients to save and leave."""
        why = f"MPS is restarted, because {self._company.name_of(client)} cannot be taken off its GPU"
        ends_at, checks_at = _now() + DRAIN_S, _now()
        while True:
            if _now() >= checks_at:
                if (found := await self._standing(pids)) is not None:
                    return found
                if client not in self._draining:
                    log.warning("%s", why)
                    self._draining.add(client)
                checks_at = _now() + _CHECK_S
            if not (others := self._company.running - self._draining):
                return Step.DONE
            if self._hurries or _now() >= ends_at:
                return Step.TIME_IS_OVER
            self._ask_to_leave(others, why)
            await self.wait_for_news()

    async def _standing(self, pids: Collection[int]) -> Step | None:
        """Why the server need not or must not be restarted for these processes; None if it may be."""
        servers = {server for server, _ in await self._server.clients_among(pids)}
        if not servers:
            return Step.GONE
        clients = {pid for server in servers for pid in await self._control.clients(server)}
        if strangers := [pid for pid in clients if not _is_ours(pid)]:
            log.warning("MPS: its server is not restarted, because processes %s use it too", strangers)
            return Step.POWERLESS
        return None

    async def _restart(self, pids: Collection[int]) -> Step:
        async with self._restarting:
            if (found := await self._standing(pids)) is not None:
                return found
            event = self._company.restarts(_now())
            for server in {server for server, _ in await self._server.clients_among(pids)}:
                try:
                    await self._control.shut_down(server)
                except MpsError:
                    self._company.withdraw(event)
                    raise
                self.restarts += 1
                await self._control.gone(server)
            await self._end_idle()
        return Step.DONE

    async def wait_for_news(self) -> None:
        """Waits until a client has ended, or for a moment."""
        self.news.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), POLL_S)


def _is_ours(pid: int) -> bool:
    """Whether this worker has started a process, or one that started it. A process that is gone is nobody's."""
    try:
        return psutil.Process() in psutil.Process(pid).parents()
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _now() -> float:
    return asyncio.get_running_loop().time()
