"""A Hypothesis state machine over the janitor, the workers' tidying and the scheduler's cycles, on the real
database.

Studies start, train, end, continue and are deleted; time passes; the janitor and the workers run and are
interrupted anywhere. Nothing that a live study has is ever touched: no row, and no checkpoint from which a trial
may continue. In the end, everything older than its retention time is gone.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, make_spec

from headrace.ages import Ages
from headrace_services.scheduler.core.inputs import (
    ExtendStudy,
    PlaceNow,
    ReportArrived,
    RetryTrials,
    StopStudy,
)
from headrace_services.scheduler.core.records import Checkpoint, Lease
from headrace_services.scheduler.engine.janitor import Done, Janitor
from headrace_services.scheduler.store import leftovers, load, removal
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.store.removal import Batch, Key

HISTORIES = int(os.environ.get("HEADRACE_JANITOR_HISTORIES", "3"))
DAY = timedelta(days=1)
REMEMBERED_DAYS = 20
AGES = Ages(
    events=DAY,
    reports=2 * DAY,
    leases=2 * DAY,
    checkpoints=DAY,
    logs=DAY,
    studies=5 * DAY,
    tombstones=REMEMBERED_DAYS * DAY,
)
POLICIES = [{"kind": "run_all"}, {"kind": "asha", "eta": 2, "rungs": [1, 2, 4], "variant": "promotion"}]


class Site(StudySite):
    """A study whose checkpoints are in a store."""

    def __init__(self, engine: AsyncEngine, spec: Any, store: set[str]) -> None:
        super().__init__(engine, spec)
        self.store = store
        self.uid = ""
        self.gone = False

    @property
    def folder(self) -> str:
        """The folder of its checkpoints."""
        return f"{self.name}-{self.uid}"

    def report(self, lease: Lease, step: int, value: float | None, **changes: Any) -> ReportArrived:
        """Store a checkpoint, and then report it."""
        made = super().report(lease, step, value, **changes)
        name = f"{lease.attempt:06d}-{made.sequence:06d}"
        uri = f"file:///s/studies/{self.folder}/trials/{lease.number}/{name}"
        self.store.add(uri)
        return ReportArrived(
            lease_id=made.lease_id,
            number=made.number,
            attempt=made.attempt,
            sequence=made.sequence,
            step=step,
            metrics=made.metrics,
            checkpoint=Checkpoint(uri=uri, step=step),
        )


class Killed(Janitor):
    """A janitor whose process dies after that many transactions."""

    def __init__(self, engine: AsyncEngine, transactions: int) -> None:
        super().__init__(engine, AGES, rest=0)
        self._left = transactions
        self._size = 2

    async def in_batches(
        self,
        conn: AsyncConnection,
        done: Done,
        what: str,
        some: Callable[[Key | None, int], Awaitable[Batch]],
    ) -> None:
        """The original, with two rows per batch."""

        async def counted(after: Key | None, most: int) -> Batch:
            self._left -= 1
            if self._left < 0:
                raise asyncio.CancelledError
            return await some(after, min(most, 2))

        await super().in_batches(conn, done, what, counted)


class JanitorMachine(RuleBasedStateMachine):
    """Some studies, a store, a janitor and a worker that tidies up."""

    url = ""

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.engine = open_engine(self.url, pool_size=4)
        self.store: set[str] = set()
        self.sites: list[Site] = []
        self.listed: dict[str, set[str]] = {}
        self.untidied_days = 0
        self.run(self.wipe())
        self.study(POLICIES[0])

    async def wipe(self) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(text("TRUNCATE study, tombstone, request, worker CASCADE"))

    def run(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        try:
            self.everything_over_age_is_gone_in_the_end()
        finally:
            self.run(self.engine.dispose())
            self.runner.close()

    def alive(self, data: st.DataObject) -> Site:
        return data.draw(st.sampled_from([site for site in self.sites if not site.gone]))

    # --- what happens --------------------------------------------------------------------------------

    @precondition(lambda self: len(self.sites) < 4)
    @rule(policy=st.sampled_from(POLICIES))
    def study(self, policy: dict[str, Any]) -> None:
        site = Site(
            self.engine, make_spec(policy=policy, max_trials=3, max_steps=4, max_retries=0), self.store
        )
        self.run(site.create())
        site.uid = self.run(site.study()).uid
        self.run(site.connect(slots=2))
        self.run(site.kick())
        self.sites.append(site)

    @precondition(lambda self: any(not site.gone for site in self.sites))
    @rule(data=st.data(), value=st.floats(0, 1), times=st.integers(1, 6))
    def train(self, data: st.DataObject, value: float, times: int) -> None:
        site = self.alive(data)
        for _ in range(times):
            leased = [row for row in self.run(site.trials()) if row.lease_id]
            if not leased:
                self.run(site.kick())
                return
            row = leased[0]
            report = site.report(site.leases[row.lease_id], row.step + 1, value)
            self.run(site.step(report, PlaceNow()))

    @precondition(lambda self: any(not site.gone for site in self.sites))
    @rule(data=st.data(), command=st.sampled_from(["stop", "extend", "retry", "further"]))
    def command(self, data: st.DataObject, command: str) -> None:
        site = self.alive(data)
        spec = self.run(site.study()).spec
        orders: dict[str, Any] = {
            "stop": StopStudy(reason="r"),
            "extend": ExtendStudy(trials=1, steps=None),
            "retry": RetryTrials(numbers=None),
            "further": ExtendStudy(trials=0, steps=min(spec["max_steps"] * 2, 16)),
        }
        self.run(site.step(orders[command], PlaceNow()))

    @precondition(lambda self: any(not site.gone for site in self.sites))
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        site = self.alive(data)

        async def delete() -> bool:
            async with transaction(self.engine) as conn:
                row = await site.study()
                if row.end_time is None or await load.live_count(conn, site.study_id):
                    return False
                await removal.mark_deleted(conn, site.study_id)
                return True

        site.gone = self.run(delete())

    @rule(days=st.integers(1, 3))
    def time_passes(self, days: int) -> None:
        self.untidied_days += days
        if self.untidied_days >= REMEMBERED_DAYS:
            self.tidy()
            self.untidied_days = days
        self.run(self.grow_older(days))

    def tidy(self) -> None:
        """A worker tidies up completely. One must do so before the scheduler forgets which studies were deleted."""
        before, self.listed = self.listed, {}
        self.worker_lists()
        self.worker_deletes(dies=False)
        self.listed = before

    async def grow_older(self, days: int) -> None:
        async with self.engine.begin() as conn:
            for table, column in (("study", "end_time"), ("tombstone", "time")):
                await conn.execute(
                    text(f"UPDATE {table} SET {column} = {column} - :days * interval '1 day'"),
                    {"days": days},
                )

    @rule(transactions=st.integers(1, 40))
    def janitor(self, transactions: int) -> None:
        async def work() -> None:
            await asyncio.gather(Killed(self.engine, transactions).clean(), return_exceptions=True)

        self.run(work())
        self.see_who_is_gone()

    def see_who_is_gone(self) -> None:
        """A study may have reached its retention time as a whole."""
        for site in self.sites:
            site.gone = site.gone or not self.rows("study WHERE id = :study AND delete_time IS NULL", site)

    @rule()
    def worker_lists(self) -> None:
        """The first half of the tidying. Anything may happen before the second half."""
        self.listed = {}
        for uri in self.store:
            self.listed.setdefault(uri.split("/")[5], set()).add(uri)

    @precondition(lambda self: self.listed)
    @rule(dies=st.booleans())
    def worker_deletes(self, dies: bool) -> None:
        for verdict in self.run(self.judged(sorted(self.listed))):
            if verdict.deleted:
                self.store -= {uri for uri in self.store if uri.split("/")[5] == verdict.folder}
            elif verdict.checkpoints:
                self.store -= self.listed[verdict.folder] - set(verdict.kept)
            if dies:
                break
        self.listed = {}

    async def judged(self, folders: list[str]) -> list[leftovers.Verdict]:
        async with transaction(self.engine) as conn:
            return await leftovers.judge(conn, folders, AGES)

    # --- what always holds ---------------------------------------------------------------------------

    def rows(self, what: str, site: Site) -> int:
        async def count() -> int:
            async with self.engine.connect() as conn:
                found = await conn.execute(text(f"SELECT count(*) FROM {what}"), {"study": site.study_id})
                return int(found.scalar_one())

        return int(self.run(count()))

    @invariant()
    def nothing_of_a_live_study_is_touched(self) -> None:
        for site in self.sites:
            if site.gone:
                continue
            study = self.run(site.study())
            if study.end_time is None and not study.aged:
                assert self.rows("event WHERE study_id = :study", site) == study.cursor
                assert self.rows("report WHERE study_id = :study", site) == study.reports
            if study.end_time is None:
                assert self.rows("trial WHERE study_id = :study", site) == study.next_number
            for row in self.run(site.trials()):
                for checkpoint in (row.checkpoint, row.best_checkpoint):
                    assert checkpoint is None or checkpoint["uri"] in self.store, row

    def everything_over_age_is_gone_in_the_end(self) -> None:
        for site in self.sites:
            if not site.gone:
                self.run(site.step(StopStudy(reason="r")))
        self.tidy()
        self.run(self.grow_older(1))
        assert self.run(Janitor(self.engine, AGES, rest=0).clean()) is not None
        self.tidy()
        self.see_who_is_gone()
        self.nothing_of_a_live_study_is_touched()
        for site in self.sites:
            if not site.gone:
                assert self.rows("event WHERE study_id = :study AND number IS NOT NULL", site) == 0
                kept = {uri for uri in self.store if uri.split("/")[5] == site.folder}
                best = {uri.split("/")[7] for uri in kept}
                assert len(best) <= 1
                ends = sum(
                    len(row.earlier_ends) for row in self.run(site.trials()) if str(row.number) in best
                )
                assert len(kept) <= 1 + ends, "its result, and those that it had before it continued"
        self.run(self.grow_older(5))
        assert self.run(Janitor(self.engine, AGES, rest=0).clean()) is not None
        self.tidy()
        assert self.store == set()
        for site in self.sites:
            for table in (
                "study WHERE id",
                "trial WHERE study_id",
                "event WHERE study_id",
                "report WHERE study_id",
            ):
                assert self.rows(f"{table} = :study", site) == 0
        self.run(self.grow_older(REMEMBERED_DAYS))
        assert self.run(Janitor(self.engine, AGES, rest=0).clean()) is not None
        assert self.rows("tombstone", self.sites[0]) == 0


def test_the_janitor_keeps_its_promises(database_url: str) -> None:
    JanitorMachine.url = database_url
    machine = JanitorMachine.TestCase
    machine.settings = settings(
        max_examples=HISTORIES,
        stateful_step_count=15 if HISTORIES < 10 else 50,
        derandomize=HISTORIES < 10,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    machine().runTest()
