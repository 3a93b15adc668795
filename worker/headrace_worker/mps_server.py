"""The server of MPS for the trials' user: found or started, and whether it accepts clients.

    no control daemon → none for this user → accepts clients ⇄ at fault → (its last client is gone) → ended

A server serves one user. The control daemon starts the next user's when the last client of the present one is gone.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from headrace.mps import uid_of
from headrace_worker.mps_control import ANSWER_S, MpsControl, MpsError, is_running


class MpsServer:
    """One user's server at a control daemon."""

    def __init__(self, control: MpsControl, uid: int) -> None:
        self._control = control
        self._uid = uid
        self._pid: int | None = None
        self._lock = asyncio.Lock()
        self.is_used = False
        """Whether this worker has used the control daemon."""

    async def lacks(self) -> str:
        """Brings it nearer to accepting clients; says what it waits for, or nothing. May be repeated. Raises
        `MpsError`."""
        async with self._lock:
            await self._control.start()
            await self._end_damaged()
            servers = await self._control.servers()
            await self._refuse_other_users(servers)
            own = [one for one in servers if uid_of(one) == self._uid]
            if servers and not own:
                self._pid = None
                return ""  # another user's, which is idle: the control daemon replaces it when our first client comes
            if not own:
                await self._control.start_server(self._uid)
                return "its server does not start"
            status = await self._control.status(own[0])
            if "FAULT" in status:
                if not await self._control.clients(own[0]):
                    await self._end(own[0])
                return "its server recovers from a fault once its last client has ended"
            if "ACTIVE" not in status:
                return f"its server is {status or 'silent'}"
            self._pid = own[0]
            return ""

    async def _end(self, server: int) -> None:
        await self._control.shut_down(server)
        await self._control.gone(server)

    async def _end_damaged(self) -> None:
        """If the control daemon is ours from before, the clients of its servers were killed with our predecessor."""
        if not self.is_used and self._control.is_ours:
            for server in await self._control.servers():
                if not await self._control.clients(server):
                    await self._end(server)
        self.is_used = True

    async def _refuse_other_users(self, servers: Collection[int]) -> None:
        """While another user's server has clients, ours would wait, possibly for days."""
        for server in servers:
            uid = uid_of(server)
            if uid is not None and uid != self._uid and (held := await self._control.clients(server)):
                raise MpsError(
                    f"its server {server} works for user {uid} ({len(held)} clients), and those of user "
                    f"{self._uid} would wait for it. Use one user for each machine"
                )

    async def has_failed(self) -> bool:
        """Whether it is at fault, or gone. No answer says nothing."""
        if self._pid is None:
            return False
        if not is_running(self._pid):
            return True
        with suppress(MpsError):
            return "FAULT" in await self._control.status(self._pid)
        return False

    async def clients_among(self, pids: Collection[int]) -> list[tuple[int, int]]:
        """Those of these processes that are clients, each with its server. Raises `MpsError`."""
        return [
            (server, client)
            for server in await self._control.servers()
            for client in await self._control.clients(server)
            if client in pids
        ]

    async def end_control(self) -> int:
        """Ends the control daemon, unless it has clients: returns how many. Raises `MpsError`."""
        async with asyncio.timeout(2 * ANSWER_S):
            held = [len(await self._control.clients(server)) for server in await self._control.servers()]
            if not sum(held):
                await self._control.quit()
            return sum(held)
