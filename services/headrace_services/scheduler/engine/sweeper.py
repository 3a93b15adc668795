"""Notices silence: leases whose holder was not heard of, and slots that nobody was told of.

Time is the database's. While the database is away nobody can be heard, so the sweeper waits one whole lease
time after it came back (and after its own start) before it lets anything expire. So it does when it was held up
itself for longer than a lease time (by a frozen process, by a database that answers slowly): its workers' heartbeats
may be waiting to be read.

A sweep only looks. What it finds is taken to the steps of its study, for which it does not wait: one study whose step
hangs, on a lock that another replica holds, must not keep the trials of all others from going on elsewhere.
"""

import asyncio
import logging
import random
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


class Sweeper:
    """One a replica; several at once do no harm."""

    def __init__(self, hub: Hub, lease_ttl_s: float) -> None:
        self._hub = hub
        self._ttl_s = lease_ttl_s
        self._heard_since: float | None = None
        self._swept = -inf
        self._expiring: set[str] = set()
        """Leases whose end is on its way to a cycle."""

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
                        None  # a database without room may not have taken the heartbeats either
                    )
                    log.exception("a sweep failed; the next one tries again")

    async def sweep(self, tasks: asyncio.TaskGroup) -> None:
        """Look once; what follows from it becomes tasks."""
        now = monotonic()
        async with transaction(self._hub.engine) as conn:
            gap_s = now - self._swept
            if self._heard_since is None or gap_s > self._ttl_s:
                if self._heard_since is not None:
                    log.warning("no sweep for %.1f s: nothing expires for another %g s", gap_s, self._ttl_s)
                self._heard_since = now
            self._swept = now
            ripe = now - self._heard_since >= self._ttl_s
            expired, unreadable = await workers.expired_leases(conn) if ripe else ([], [])
            await workers.forget_asked_of_ended(conn)
        for lease, why in expired:
            if lease.id not in self._expiring:
                self._expiring.add(lease.id)
                tasks.create_task(self._expire(lease, why))
        for broken in unreadable:
            self._hub.set_aside(broken.study_id, f"lease {broken.id} cannot be read: {broken.reason}")
        self._hub.wake_waiting_studies()
        self._hub.drop_idle()

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
