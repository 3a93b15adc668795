"""A Hypothesis state machine of ask and tell over the real database. Clients ask, report in time and late, die and
come back, while users and other schedulers act freely. Whatever happens, a late message counts exactly as long as
nobody else had the trial and nothing was decided about it. A lease belongs to one client, and the study's hours
are those in which somebody held a trial."""

import asyncio
import time
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import text
from study_site import StudySite, make_spec
from test_step_machine import HISTORIES, POLICIES, StepMachine

from headrace_services.scheduler.core import hours
from headrace_services.scheduler.core.inputs import (
    Accepted,
    ExitedArrived,
    ExtendStudy,
    Input,
    LeaseExpired,
    PauseStudy,
    PauseTrial,
    PlaceNow,
    Renewed,
    Reopened,
    ReportArrived,
    ResumeStudy,
    ResumeTrial,
    RetryTrials,
    Stale,
    StopTrial,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.records import Checkpoint, Lease
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.store import rows
from headrace_services.scheduler.store.database import open_engine

BUDGET_H = 100.0


class AskTellMachine(RuleBasedStateMachine):
    """One study, its clients, and everything that can happen to them."""

    url = ""

    @initialize(
        policy=st.sampled_from(POLICIES), retries=st.integers(0, 1), parallel=st.sampled_from([0, 0, 2])
    )
    def begin(self, policy: dict[str, Any], retries: int, parallel: int) -> None:
        self.runner = asyncio.Runner()
        self.engine = open_engine(self.url, pool_size=2)
        spec = make_spec(
            policy=policy,
            max_retries=retries,
            max_trials=6,
            max_steps=4,
            max_parallel=parallel,
            template=None,
            until={"hours": BUDGET_H},
        )
        self.site = StudySite(self.engine, spec)
        self.run(self.site.create())
        self.leases: dict[str, Lease] = {}
        self.answers: dict[str, Accepted] = {}
        self.reports = 0
        self.over: set[str] = set()
        """Leases that must never count again: their client ended the attempt or was told to, or others had the
        trial."""
        self.used_s = 0.0
        """The used part of the budget, without the seconds that the test itself takes."""
        self.began = time.monotonic()

    def run(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)

    def step(self, *inputs: Input) -> list[Any]:
        outcomes = list(self.run(self.site.step(*inputs)))
        for one, outcome in zip(inputs, outcomes, strict=True):
            if isinstance(one, ExtendStudy | RetryTrials) and isinstance(outcome, Reopened):
                self.used_s = 0.0
        self._see_ends()
        return outcomes

    def _see_ends(self) -> None:
        """A lease is over for good once its trial ends, has another attempt, or moves for any reason but silence."""
        for lease in self.leases.values():
            trial = self.run(self.site.trial(lease.number))
            is_its = trial.attempt == lease.attempt and (trial.lease_id == lease.id or trial.lapsed)
            if not is_its:
                self.over.add(lease.id)

    @property
    def spec(self) -> Any:
        return StepMachine.spec.fget(self)

    query = StepMachine.query

    # --- clients ---------------------------------------------------------------------------------------

    @rule(client=st.sampled_from("abc"))
    def ask(self, client: str) -> None:
        (asked,) = self.step(Suggest(client_id=client, ttl_s=60))
        if isinstance(asked, Suggested) and asked.lease is not None:
            self.leases[asked.lease.id] = asked.lease

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def fall_silent(self, data: st.DataObject) -> None:
        self.silence(self.draw(data))

    def draw(self, data: st.DataObject) -> Lease:
        return data.draw(st.sampled_from(sorted(self.leases.values(), key=lambda lease: lease.id)))

    def silence(self, lease: Lease) -> None:
        async def expire() -> None:
            async with self.engine.begin() as conn:
                gone = "UPDATE lease SET expires_at = '2000-01-01' WHERE id = :id AND live"
                await conn.execute(text(gone), {"id": lease.id})

        self.run(expire())
        expired = LeaseExpired(
            lease_id=lease.id, number=lease.number, attempt=lease.attempt, sequence=None, why="w"
        )
        self.step(expired)

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        value=st.floats(-2, 2) | st.just(float("nan")),
        ahead=st.integers(0, 2),
        saved=st.booleans(),
        lapses=st.booleans(),
        taken=st.booleans(),
    )
    def report(
        self, data: st.DataObject, value: float, ahead: int, saved: bool, lapses: bool, taken: bool
    ) -> None:
        """In time, or late. If `taken`, another client asks first, in the same cycle."""
        lease = self.draw(data)
        if lapses:
            self.silence(lease)
        trial = self.run(self.site.trial(lease.number))
        attempt = self.query(f"SELECT step, live FROM lease WHERE id = '{lease.id}'")[0]
        step = min(attempt.step + 1 + ahead, trial.milestone or 4)
        report = ReportArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=None,
            step=step,
            metrics={"loss": value},
            checkpoint=Checkpoint(uri=f"mem:/{lease.id}/{step}", step=step) if saved else None,
        )
        may_count = lease.id not in self.over
        before = [] if not taken else [Suggest(client_id="thief", ttl_s=60)]
        *others, outcome = self.step(*before, report)
        for asked in others:  # it is served after the report, and gets what remains
            if isinstance(asked, Suggested) and asked.lease is not None:
                self.leases[asked.lease.id] = asked.lease
        if not may_count:
            assert isinstance(outcome, Stale)
            assert outcome.why
            assert outcome.remedy
            return
        assert not isinstance(outcome, Stale), "nobody had it, and nothing was decided"
        if isinstance(outcome, Accepted):
            self.reports += 1

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), outcome=st.sampled_from(["FINISHED", "FAILED", "RELEASED"]), lapses=st.booleans())
    def end(self, data: st.DataObject, outcome: str, lapses: bool) -> None:
        lease = self.draw(data)
        if lapses:
            self.silence(lease)
        may_count = lease.id not in self.over
        name = {"lease_id": lease.id, "number": lease.number, "attempt": lease.attempt, "sequence": None}
        (said,) = self.step(ExitedArrived(**name, outcome=outcome, error="e"))
        assert isinstance(said, Accepted) is may_count
        assert lease.id in self.over

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), lapses=st.booleans())
    def renew(self, data: st.DataObject, lapses: bool) -> None:
        lease = self.draw(data)
        if lapses:
            self.silence(lease)
        may_count = lease.id not in self.over
        name = {"lease_id": lease.id, "number": lease.number, "attempt": lease.attempt, "sequence": None}
        (said,) = self.step(Renewed(**name))
        assert isinstance(said, Accepted) is may_count

    # --- users, schedulers and time --------------------------------------------------------------------

    @rule(number=st.integers(0, 6), command=st.sampled_from([PauseTrial, ResumeTrial]))
    def hold(self, number: int, command: Any) -> None:
        self.step(command(number=number))

    @rule(number=st.integers(0, 6))
    def stop(self, number: int) -> None:
        self.step(StopTrial(number=number, reason="r"))

    @rule(command=st.sampled_from([PauseStudy, ResumeStudy]))
    def pause(self, command: Any) -> None:
        self.step(command())

    @rule(number=st.none() | st.integers(0, 6))
    def retry(self, number: int | None) -> None:
        self.step(RetryTrials(numbers=None if number is None else frozenset({number})))

    @precondition(lambda self: self.spec.max_trials < 20)
    @rule(trials=st.integers(1, 3))
    def extend(self, trials: int) -> None:
        self.step(ExtendStudy(trials=trials, steps=None))

    @rule()
    def restart(self) -> None:
        self.site.fold = None
        self.step(PlaceNow())

    @rule(passed_h=st.sampled_from([1.0, 40.0]), away=st.booleans())
    def time_passes(self, passed_h: float, away: bool) -> None:
        """With schedulers running, all of the time counts. Without any, one minute of it does."""
        held = self.holds

        async def pass_time() -> None:
            for name in ["since_s", "seen_s"] if away else ["since_s"]:
                shift = (
                    "UPDATE study SET standing = jsonb_set(standing, ARRAY['progress', :name],"
                    " to_jsonb((standing #>> ARRAY['progress', :name])::double precision - :seconds))"
                    " WHERE id = :id AND standing #>> '{progress,since_s}' IS NOT NULL"
                )
                values = {"id": self.site.study_id, "name": name, "seconds": 3600 * passed_h}
                async with self.engine.begin() as conn:
                    await conn.execute(text(shift), values)

        self.run(pass_time())
        if held:
            self.used_s += hours.MOST_GAP_S if away else 3600 * passed_h
        self.step(PlaceNow())

    # --- what always holds -------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether a client holds a trial."""
        return bool(self.query("SELECT id FROM lease WHERE study_id = :study AND live"))

    @invariant()
    def the_hours_are_those_in_which_a_trial_was_held(self) -> None:
        study = self.run(self.site.study())
        standing = rows.standing(study.standing)
        progress, closing = standing.progress, standing.closing
        used_s = progress.spent_s + progress.running_s
        slack_s = time.monotonic() - self.began + 1  # the test's own time, while a trial is held
        assert self.used_s - 1e-3 <= used_s <= self.used_s + slack_s
        assert (progress.since_s is not None) == self.holds
        why = study.detail if closing is None else closing.why
        if "have run for" in why:  # it has ended, or closes and waits for its clients
            assert used_s >= 3600 * BUDGET_H - 1e-3
        elif study.state in ("ACTIVE", "PAUSED"):
            assert used_s < 3600 * BUDGET_H or closing is not None

    @invariant()
    def a_lease_is_of_a_trial_that_runs(self) -> None:
        leased = self.query("SELECT lease_id FROM trial WHERE study_id = :study AND lease_id IS NOT NULL")
        live = self.query("SELECT id FROM lease WHERE study_id = :study AND live")
        assert sorted(row[0] for row in leased) == sorted(row[0] for row in live)

    @invariant()
    def nothing_is_lost_and_nothing_doubled(self) -> None:
        stored = self.query("SELECT count(*) FROM report WHERE study_id = :study")[0][0]
        assert stored == self.reports == len(self.run(self.site.events("report_recorded")))

    lawful = StepMachine.the_log_has_no_gaps_and_tells_lawful_lives
    ended = StepMachine.an_ended_study_leaves_nothing_behind
    rebuilt = StepMachine.a_rebuilt_policy_would_promote_the_same
    filed = StepMachine.a_promotion_is_filed_under_the_event_that_tells_of_it

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            found = replay(self.spec, self.run(self.site.log()))
            self.run(self.clear())
            self.run(self.engine.dispose())
            self.runner.close()
            assert found.identical, found.differences
            assert not found.reworded

    clear = StepMachine.clear


def test_a_late_word_counts_as_long_as_nobody_else_had_the_trial(database_url: str) -> None:
    AskTellMachine.url = database_url
    case = AskTellMachine.TestCase
    case.settings = settings(
        max_examples=HISTORIES,
        stateful_step_count=25,
        deadline=None,
        derandomize=HISTORIES <= 100,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
