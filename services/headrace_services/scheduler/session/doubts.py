"""Whether a worker reaches its programs, according to its messages: the part of a session that counts failed
starts.

`store.failed_starts` decides what follows.
"""

import logging

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.bounds.sessions import TROUBLE
from headrace.v1 import worker_pb2
from headrace_services.scheduler.session.refusals import Durable
from headrace_services.scheduler.store import failed_starts
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.failed_starts import Doubt

log = logging.getLogger(__name__)
_BY_THEMSELVES = (
    worker_pb2.EXIT_OUTCOME_FINISHED,
    worker_pb2.EXIT_OUTCOME_FAILED,
    worker_pb2.EXIT_OUTCOME_INFEASIBLE,
)


class Doubts:
    """The failed starts of one worker. The rows are authoritative; they are read once for each session, and while
    there are any."""

    def __init__(self, engine: AsyncEngine, name: str, worker_id: int) -> None:
        self._engine = engine
        self._name = name
        self._worker_id = worker_id
        self._known: Doubt | None = None
        # Leases that were checked since the last attempt that did not reach its program.
        self._asked: set[str] = set()

    async def ended(self, exited: worker_pb2.Exited) -> None:
        """Count an attempt that did not reach its program, before its trial is placed again."""
        if exited.outcome != worker_pb2.EXIT_OUTCOME_UNREACHED:
            return
        why = TROUBLE.kept(exited.error)
        async with transaction(self._engine) as conn:
            self._known = await failed_starts.count(conn, self._worker_id, exited.lease.lease_id, why)
        self._asked.clear()
        if self._known.suspended:
            log.warning(
                "worker '%s' is suspended for a while: it does not reach its programs: %s", self._name, why
            )

    async def reached(self, message: Durable) -> bool:
        """A message shows that an attempt reached its program. Returns whether its worker gets trials again because
        of it."""
        lease_id = message.lease.lease_id
        if lease_id in self._asked or not _shows_it(message) or not (before := await self._doubt()).times:
            return False
        self._asked.add(lease_id)
        async with transaction(self._engine) as conn:
            if not await failed_starts.reached(conn, self._worker_id, lease_id):
                return False
        self._known = Doubt(times=0, suspended=False)
        return before.suspended

    async def try_again(self) -> bool:
        """Let trials start again if the worker's suspension is over. Returns whether it was."""
        if not (before := await self._doubt()).suspended:
            return False
        async with transaction(self._engine) as conn:
            if not await failed_starts.try_again(conn, self._worker_id):
                return False
        self._known = Doubt(times=before.times, suspended=False)
        log.info("worker '%s' gets trials again", self._name)
        return True

    async def _doubt(self) -> Doubt:
        if self._known is None:
            async with transaction(self._engine) as conn:
                self._known = await failed_starts.doubt(conn, self._worker_id)
        return self._known


def _shows_it(message: Durable) -> bool:
    """Whether only a running program can be the source of a message. What code it runs is reported before that."""
    match message:
        case worker_pb2.Report():
            return True
        case worker_pb2.Restored():
            return not message.HasField("code")
        case _:
            return message.outcome in _BY_THEMSELVES
