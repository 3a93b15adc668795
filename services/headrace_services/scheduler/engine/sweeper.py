"""Detect silence: leases whose holder was not heard from, and slots that no one was notified of.

Time is the database's. While the database is unavailable no worker can be heard from. So the sweeper waits one
whole lease time after the database has returned (and after its own start) before it lets anything expire. It does
the same if it was held up itself for longer than a lease time (by a frozen process, or by a database that answers
slowly): its workers' heartbeats may be waiting to be read. If the event loop was late for a shorter time,
everything lasts that much longer.

A message counts as soon as it arrives, before it is in the rows: a worker is not silent if this replica has heard
from it, and its heartbeat or Hello is being written or waits behind other messages.

A sweep only looks. What it finds is submitted to the study's cycles, for which it does not wait: a study whose
cycle hangs, on a lock that another replica holds, must not keep the trials of all others from continuing
elsewhere.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from math import inf
from time import monotonic

from headrace.errors import DatabaseUnavailableError, HeadraceError
from headrace_services.scheduler.core.inputs import LeaseExpired
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction

log = logging.getLogger(__name__)

IsHeard = Callable[[int, str, float], bool]
"""Whether this replica has heard from a worker, given by id and name, within this many seconds."""
LateWithin = Callable[[float], float]
"""For how long, within this many seconds, the event loop was late."""


class Sweeper:
    """One on each replica; several at once are harmless."""

    def __init__(
        self,
        hub: Hub,
        lease_ttl_s: float,
        *,
        is_heard: IsHeard = lambda _id, _name, _within_s: False,
        late_within: LateWithin = lambda _s: 0.0,
    ) -> None:
        self._hub = hub
        self._ttl_s = lease_ttl_s
        self._is_heard = is_heard
        self._late_within = late_within
        self._heard_since: float | None = None
        self._swept = -inf
        self._expiring: set[str] = set()
        """Leases whose expiry is being submitted to a cycle."""

    async def run(self) -> None:
        """Sweep four times a lease time, with jitter, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._ttl_s / 4 * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
                try:
                    await self.sweep(tasks)
                except DatabaseUnavailableError:
                    self._heard_since = None
                except Exception:
                    self._heard_since = (
                        None  # a database without disk space may not have accepted the heartbeats either
                    )
                    log.exception("a sweep failed; the next one tries again")

    async def sweep(self, tasks: asyncio.TaskGroup) -> None:
        """Check once; what follows is submitted in tasks."""
        now = monotonic()
        async with transaction(self._hub.engine) as conn:
            gap_s = now - self._swept
            if self._heard_since is None or gap_s > self._ttl_s:
                if self._heard_since is not None:
                    log.warning("no sweep for %.1f s: nothing expires for another %g s", gap_s, self._ttl_s)
                self._heard_since = now
            self._swept = now
            ripe = now - self._heard_since >= self._ttl_s
            late_s = self._late_within(self._ttl_s)
            expired, unreadable = await workers.expired_leases(conn, late_s=late_s) if ripe else ([], [])
            await workers.forget_asked_of_ended(conn)
        for one in expired:
            if one.lease.id not in self._expiring and not self._lives(one):
                self._expiring.add(one.lease.id)
                tasks.create_task(self._expire(one.lease, one.why))
        for broken in unreadable:
            self._hub.quarantine(broken.study_id, f"lease {broken.id} cannot be read: {broken.reason}")
        self._hub.wake_waiting_studies()
        self._hub.drop_idle()

    def _lives(self, expired: workers.ExpiredLease) -> bool:
        """Whether the worker of a lease was heard from here, and the rows do not show it yet."""
        worker_id, name = expired.lease.worker_id, expired.silent_worker
        return worker_id is not None and bool(name) and self._is_heard(worker_id, name, self._ttl_s)

    async def _expire(self, lease: Lease, why: str) -> None:
        expired = LeaseExpired(
            lease_id=lease.id, number=lease.number, attempt=lease.attempt, sequence=None, why=why
        )
        try:
            await self._hub.submit(lease.study_id, Submission(input=expired))
        except HeadraceError as error:
            log.info("lease %s did not expire: %s", lease.id, error)
        except Exception:
            log.exception("lease %s did not expire; the next sweep tries again", lease.id)
        finally:
            self._expiring.discard(lease.id)
