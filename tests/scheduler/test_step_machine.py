"""A Hypothesis state machine over the real database. Whatever arrives, in whatever order and however often, the
rows obey the lifecycle, nothing is lost or doubled, and no slot idles while something could run. A scheduler that
restarts (an empty cache) decides like one that does not."""

import asyncio
import os
from math import isfinite
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from sqlalchemy import text
from study_site import StudySite, gone, make_spec
from tiers import drawn

from headrace.spec import OnCodeChange, StudySpec
from headrace.spec.fuse import Fuse
from headrace_services.scheduler.core.capacity import Measured, Profile, TurnCost, capacity
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import (
    Accepted,
    AttemptCode,
    ExitedArrived,
    ExtendStudy,
    Input,
    LeaseExpired,
    PauseStudy,
    PauseTrial,
    PlaceNow,
    ReportArrived,
    RestoredArrived,
    ResumeStudy,
    ResumeTrial,
    RetryTrials,
    SourceFile,
    StopTrial,
)
from headrace_services.scheduler.core.lifecycle import TRANSITIONS, Reason
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.samplers import make_sampler
from headrace_services.scheduler.store import rows, workers
from headrace_services.scheduler.store.database import open_engine, transaction

HISTORIES = int(os.environ.get("HEADRACE_STEP_HISTORIES", drawn(first=4, full=12)))
"""How many histories are played. They are the same in each run, unless there are very many (`make long`)."""
MOVES = {(f"TRIAL_STATE_{row.source}", row.action.value, f"TRIAL_STATE_{row.target}") for row in TRANSITIONS}
VALUES = st.one_of(
    st.none(), st.just(float("nan")), st.just(float("inf")), st.floats(-2, 2), st.sampled_from([0.5, 1.0])
)
TURNS = st.none() | st.builds(
    TurnCost,
    members=st.sampled_from([1, 2, 4, 8]),
    turns=st.integers(1, 3),
    time_s=st.sampled_from([1.0, 1.5, 2.0, 8.0]),
    fresh=st.booleans(),
)
STAGE = "in bubbles of job gpt, stage 1"
"""The kind of device on which bundles in bubbles are measured."""
POLICIES = [
    {"kind": "run_all"},
    {"kind": "asha", "eta": 2, "rungs": [1, 2, 4], "variant": "promotion"},
    {"kind": "asha", "eta": 2, "rungs": [1, 2, 4], "variant": "stopping"},
    {"kind": "asha", "eta": 2, "min_steps": 1, "brackets": 2, "variant": "promotion"},
]


class StepMachine(RuleBasedStateMachine):
    """One study, two workers and a stage of a large job, and everything that can happen to them."""

    url = ""

    @initialize(
        policy=st.sampled_from(POLICIES),
        retries=st.integers(0, 1),
        baseline=st.booleans(),
        fuse=st.sampled_from([None, {"most": 2}, {"most": 3}, "auto"]),
        bubbles=st.booleans(),
        edits=st.sampled_from(OnCodeChange),
        until=st.sampled_from([None, {"no_improvement": 2}, {"value": -0.5}]),
    )
    def begin(
        self,
        policy: dict[str, Any],
        retries: int,
        baseline: bool,
        fuse: Any,
        bubbles: bool,
        edits: OnCodeChange,
        until: dict[str, float] | None,
    ) -> None:
        self.runner = asyncio.Runner()
        self.engine = open_engine(self.url, pool_size=2)
        spec = make_spec(
            policy=policy,
            max_retries=retries,
            max_trials=18 if fuse else 6,
            max_steps=4,
            fuse=fuse,
            bubbles=bubbles,
            on_code_change=edits,
            until=until,
            baseline={"x": 0.5} if baseline else None,
        )
        self.site = StudySite(self.engine, spec)
        self.run(self.site.create())
        self.run(self.site.connect("a", slots=2))
        self.run(self.site.connect("b", slots=1, incarnation="2"))
        self.run(self.greet_beside(offered=True))
        self.said: list[ReportArrived] = []
        self.answers: dict[tuple[str, int | None], Accepted] = {}
        self.completions: dict[int, list[tuple[int, float | None]]] = {}
        self.run(self.site.kick())

    def run(self, awaitable: Any) -> Any:
        return self.runner.run(awaitable)

    def step(self, *inputs: Input) -> list[Any]:
        return list(self.run(self.site.step(*inputs)))

    def lease(self, data: st.DataObject) -> Lease:
        return data.draw(st.sampled_from(sorted(self.site.leases.values(), key=lambda lease: lease.id)))

    async def greet_beside(self, *, offered: bool) -> None:
        """The worker next to a stage, which is offered or taken back."""
        stage = workers.Device(
            index=10_000,
            kind="CPU",
            model="",
            memory_bytes=8,
            uuid="",
            defect="" if offered else "the job has ended",
            owner="gpt",
            stage=1,
            duty=0.25,
        )
        greeting = workers.Greeting(
            name=f"{self.site.name}-c", incarnation="3", devices=(stage,), labels={}, version="", log_dir="/l"
        )
        async with transaction(self.engine) as conn:
            await workers.greet(conn, greeting, 3600)

    @rule(offered=st.booleans())
    def stage(self, offered: bool) -> None:
        self.run(self.greet_beside(offered=offered))
        self.step(PlaceNow())

    @rule(
        data=st.data(),
        value=VALUES,
        ahead=st.integers(-1, 3),
        saved=st.booleans(),
        twice=st.booleans(),
        turn=TURNS,
    )
    def report(
        self,
        data: st.DataObject,
        value: float | None,
        ahead: int,
        saved: bool,
        twice: bool,
        turn: TurnCost | None,
    ) -> None:
        lease = self.lease(data)
        report = self.site.report(lease, max(1, lease.step + 1 + ahead), value, saved=saved, turn=turn)
        outcomes = self.step(*([report] * (2 if twice else 1)), PlaceNow())
        if isinstance(outcomes[0], Accepted):
            self.said.append(report)
            self.answers[report.lease_id, report.sequence] = outcomes[0]
        if twice:
            assert outcomes[0] == outcomes[1]

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def report_again(self, data: st.DataObject) -> None:
        report = data.draw(st.sampled_from(self.said))
        (outcome,) = self.step(report)
        before = self.answers[report.lease_id, report.sequence].decision
        assert isinstance(outcome, Accepted)
        assert outcome.decision is not None
        assert before is not None
        # The pinned checkpoints are computed again: since then the trial may have ended, and continued. An earlier end
        # that no longer counts and was no completion is forgotten then.
        assert replace(outcome.decision, pinned=before.pinned) == before
        (row,) = self.query(f"SELECT * FROM trial WHERE study_id = :study AND number = {report.number}")
        ends = {end.checkpoint.uri for end in rows.trial(row).earlier_ends if end.checkpoint is not None}
        assert ends <= set(outcome.decision.pinned)

    @rule(data=st.data())
    def restored(self, data: st.DataObject) -> None:
        lease = self.lease(data)
        self.site.sequences[lease.id] += 1
        sequence = self.site.sequences[lease.id]
        self.step(
            RestoredArrived(lease_id=lease.id, number=lease.number, attempt=lease.attempt, sequence=sequence)
        )

    @rule(data=st.data(), content=st.sampled_from("AAB"))
    def loaded(self, data: st.DataObject, content: str) -> None:
        code = AttemptCode(digest=content, files=(SourceFile("train.py", content),))
        outcome = self.say_loaded(self.lease(data), code)
        if self.spec.on_code_change is OnCodeChange.REFUSE and isinstance(outcome, Accepted):
            assert content == self.run(self.site.study()).code_files["train.py"][0]

    @invariant()
    def only_code_that_is_let_pass_marks_trials(self) -> None:
        marked = {row.number for row in self.run(self.site.trials()) if row.code_changed}
        let_pass = {
            event.number
            for event in self.run(self.site.events("code_changed"))
            if not event.detail["refused"]
        }
        assert marked == let_pass
        assert self.spec.on_code_change is not OnCodeChange.REFUSE or not marked

    @rule(
        data=st.data(),
        outcome=st.sampled_from(["FINISHED", "FAILED", "LOST", "RELEASED", "UNREACHED"]),
        out_of_memory=st.sampled_from([0, 0, 1, 2, 4]),
    )
    def exited(self, data: st.DataObject, outcome: str, out_of_memory: int) -> None:
        lease = self.lease(data)
        self.site.sequences[lease.id] += 1
        sequence = self.site.sequences[lease.id]
        ended = ExitedArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=sequence,
            outcome=outcome,
            error="e",
            out_of_memory=out_of_memory,
        )
        before = self.run(self.site.trial(lease.number))
        self.step(ended, PlaceNow())
        if outcome == "UNREACHED":
            after = self.run(self.site.trial(lease.number))
            assert (after.failures, after.losses_in_row) == (before.failures, before.losses_in_row)

    @rule(data=st.data())
    def expired(self, data: st.DataObject) -> None:
        lease = self.lease(data)
        self.run(self.hear_of_workers("2000-01-01"))
        self.step(
            LeaseExpired(
                lease_id=lease.id, number=lease.number, attempt=lease.attempt, sequence=None, why="w"
            )
        )
        self.run(self.hear_of_workers("2100-01-01"))
        self.step(PlaceNow())

    async def hear_of_workers(self, when: str) -> None:
        await self.execute(f"UPDATE worker SET expires_at = '{when}'")

    async def execute(self, statement: str) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(text(statement))

    @rule(number=st.integers(0, 7), command=st.sampled_from([PauseTrial, ResumeTrial]))
    def hold(self, number: int, command: Any) -> None:
        self.step(command(number=number), PlaceNow())

    @rule(number=st.integers(0, 7))
    def stop(self, number: int) -> None:
        self.step(StopTrial(number=number, reason="r"), PlaceNow())

    @rule(command=st.sampled_from([PauseStudy, ResumeStudy]))
    def pause(self, command: Any) -> None:
        self.step(command(), PlaceNow())

    @rule(value=st.sampled_from([0.25, 0.5, 1.0, 2.0]))
    def finishes(self, value: float) -> None:
        """Every running trial reports at its milestones until nothing runs: most of them complete."""
        for _ in range(40):
            running = self.running()
            if not running:
                return
            for lease, milestone in running:
                report = self.site.report(lease, milestone, value + lease.number / 64)
                (outcome, _) = self.step(report, PlaceNow())
                if isinstance(outcome, Accepted):
                    self.said.append(report)
                    self.answers[report.lease_id, report.sequence] = outcome

    @rule(place=st.integers(0, 3))
    def fails_for_good(self, place: int) -> None:
        """A running trial fails as often as it may."""
        numbers = [lease.number for lease, _ in self.running()]
        for _ in range(4):
            for lease, _ in self.running():
                if lease.number in numbers[place : place + 1]:
                    self.site.sequences[lease.id] += 1
                    failed = gone(lease, "FAILED", self.site.sequences[lease.id], error="e")
                    self.step(failed, PlaceNow())

    @rule(place=st.integers(0, 3))
    def is_edited_and_killed(self, place: int) -> None:
        """A trial reports, and each of its next attempts says that it runs an edit, and is lost."""
        numbers = [lease.number for lease, _ in self.running()][place : place + 1]
        for content in "ABBB":
            code = AttemptCode(digest=content, files=(SourceFile("train.py", content),))
            for lease in [lease for lease, _ in self.running() if lease.number in numbers]:
                if content == "A":
                    report = replace(self.site.report(lease, lease.step + 1, 0.5), code=code)
                    (outcome, _) = self.step(report, PlaceNow())
                    if isinstance(outcome, Accepted):
                        self.said.append(report)
                        self.answers[report.lease_id, report.sequence] = outcome
                    continue
                self.say_loaded(lease, code)
                self.site.sequences[lease.id] += 1
                self.step(gone(lease, "LOST", self.site.sequences[lease.id]), PlaceNow())

    def say_loaded(self, lease: Lease, code: AttemptCode) -> Any:
        """An attempt has started and says what it runs."""
        self.site.sequences[lease.id] += 1
        (outcome,) = self.step(
            RestoredArrived(
                lease_id=lease.id,
                number=lease.number,
                attempt=lease.attempt,
                sequence=self.site.sequences[lease.id],
                code=code,
            )
        )
        return outcome

    def running(self) -> list[tuple[Lease, int]]:
        """The leases of the running trials, each with its milestone."""
        found = self.query(
            "SELECT lease_id, milestone FROM trial WHERE study_id = :study AND lease_id IS NOT NULL ORDER BY number"
        )
        return [(self.site.leases[row.lease_id], row.milestone) for row in found]

    @rule(number=st.none() | st.integers(0, 7))
    def retry(self, number: int | None) -> None:
        self.step(RetryTrials(numbers=None if number is None else frozenset({number})), PlaceNow())

    @precondition(lambda self: self.spec.max_trials < 30)
    @rule(trials=st.integers(1, 3))
    def extend_trials(self, trials: int) -> None:
        self.step(ExtendStudy(trials=trials, steps=None), PlaceNow())

    @precondition(lambda self: self.spec.max_steps < 16)
    @rule(more=st.integers(0, 4))
    def extend_steps(self, more: int) -> None:
        self.step(ExtendStudy(trials=0, steps=self.spec.max_steps + more), PlaceNow())

    @rule()
    def grace_passes(self) -> None:
        """The trials of a closing study have used up their time to stop."""
        over = "UPDATE study SET standing = jsonb_set(standing, '{closing,by_s}', '0')"
        self.run(self.execute(f"{over} WHERE standing #> '{{closing,by_s}}' IS NOT NULL"))
        self.step(PlaceNow())
        assert not self.closes()

    def closes(self) -> bool:
        study = self.run(self.site.study())
        return study.state in ("ACTIVE", "PAUSED") and bool(study.standing.get("closing"))

    @rule()
    def restart(self) -> None:
        self.site.fold = None
        self.step(PlaceNow())

    @property
    def spec(self) -> StudySpec:
        """The study's spec, as stored in its row."""
        return StudySpec.stored(self.run(self.site.study()).spec)

    # --- what always holds ---------------------------------------------------------------------------

    def query(self, sql: str) -> list[Any]:
        return list(self.run(self.site.rows(text(sql.replace(":study", str(self.site.study_id))))))

    @invariant()
    def leases_trials_and_slots_agree(self) -> None:
        leased = self.query("SELECT lease_id FROM trial WHERE study_id = :study AND lease_id IS NOT NULL")
        live = self.query("SELECT id, grant_id FROM lease WHERE study_id = :study AND live")
        held = self.query("SELECT grant_id FROM slot WHERE grant_id IS NOT NULL")
        assert sorted(row[0] for row in leased) == sorted(row[0] for row in live)
        mine = {row.grant_id for row in live}
        assert sorted(
            row[0] for row in held if row[0].split(".")[0] in {i.split(".")[0] for i in self.site.leases}
        ) == sorted(mine)

    @invariant()
    def a_grant_is_charged_once_and_has_a_seat_for_each_lease(self) -> None:
        grants = self.query(
            "SELECT g.id, g.seats, g.bubbles, count(l.id) AS members FROM slot_grant g"
            " LEFT JOIN lease l ON l.grant_id = g.id AND l.live WHERE g.study_id = :study AND g.live GROUP BY g.id"
        )
        assert all(1 <= grant.members <= grant.seats for grant in grants)
        usage = self.run(self.site.study()).standing["usage"]
        assert usage["cpu_slots"] == sum(not grant.bubbles for grant in grants)
        assert usage["bubble_slots"] == sum(bool(grant.bubbles) for grant in grants)

    @invariant()
    def nobody_is_in_bubbles_who_must_not_be(self) -> None:
        """A trial is not in bubbles if there are workers with other slots, unless these are avoided."""
        there = self.query(
            "SELECT t.milestone FROM lease l JOIN slot_grant g ON g.id = l.grant_id AND g.bubbles <> ''"
            " JOIN trial t ON t.study_id = l.study_id AND t.number = l.number"
            " JOIN study s ON s.id = l.study_id AND s.standing -> 'avoided' = '{}'"
            " WHERE l.study_id = :study AND l.live"
        )
        assert self.site.spec.bubbles or not there
        assert all(row.milestone < self.spec.max_steps for row in there)

    @invariant()
    def no_seat_idles_while_a_trial_could_take_it(self) -> None:
        fuse = self.site.spec.fuse
        if fuse is None or self.run(self.site.study()).state != "ACTIVE":
            return
        untaken = self.query(
            "SELECT g.id, t.number FROM slot_grant g JOIN trial t ON t.study_id = g.study_id"
            " JOIN grant_part p ON p.grant_id = g.id JOIN study s ON s.id = g.study_id"
            " WHERE g.study_id = :study AND g.live AND g.seats > 1 AND NOT g.closed"
            " AND NOT coalesce(s.standing -> 'avoided' ? p.incarnation, false)"
            " AND t.state IN ('PENDING', 'PAUSED') AND t.milestone IS NOT NULL AND NOT t.user_paused"
            " AND (SELECT count(*) FROM lease WHERE grant_id = g.id AND live)"
            f" < least(g.seats, (CASE g.bubbles WHEN '' THEN {self.room(fuse)} ELSE {self.room(fuse, STAGE)} END)"
            " >> t.losses_in_row)"
            f" AND (g.bubbles = '' OR t.milestone < {self.spec.max_steps})"
            " AND NOT EXISTS (SELECT FROM leave WHERE grant_id = g.id)"
        )
        assert untaken == []

    def room(self, fuse: Fuse, device: str = "") -> int:
        """How many trials may share a process on a kind of device, by the rows. All trials have the same key."""
        found = self.query(
            f"SELECT steady, fresh, most FROM bundle_profile WHERE study_id = :study AND device = '{device}'"
        )
        steady, fresh = (
            {int(n): Measured(**known) for n, known in turns.items()}
            for turns in ((found[0].steady, found[0].fresh) if found else ({}, {}))
        )
        most = found[0].most if found else None
        profile = Profile(device="", key="[]", steady=steady, fresh=fresh, most=most)
        return capacity(fuse, profile, 0).trials

    @invariant()
    def a_new_bundle_has_no_more_seats_than_a_process_had_memory_for(self) -> None:
        if self.site.spec.fuse is None:
            return
        beyond = self.query(
            "SELECT g.id FROM slot_grant g JOIN bundle_profile b ON b.study_id = g.study_id"
            " AND b.device = CASE g.bubbles WHEN '' THEN '' ELSE 'in bubbles of ' || g.bubbles END"
            " WHERE g.study_id = :study AND g.grant_time > b.time AND g.seats > b.most"
        )
        assert beyond == []

    @invariant()
    def the_log_has_no_gaps_and_tells_lawful_lives(self) -> None:
        events = self.run(self.site.events())
        assert [event.cursor for event in events] == list(range(1, len(events) + 1))
        assert self.run(self.site.study()).cursor == len(events)
        where: dict[int, str] = {
            event.number: "TRIAL_STATE_PENDING" for event in events if event.kind == "trial_created"
        }
        for event in events:
            if event.kind == "trial_moved":
                move = (event.detail["from_state"], event.detail["action"], event.detail["to_state"])
                assert move in MOVES
                assert move[0] == where[event.number]
                where[event.number] = move[2]
        states = {row.number: f"TRIAL_STATE_{row.state}" for row in self.run(self.site.trials())}
        assert states == where

    @invariant()
    def every_accepted_report_is_stored_once(self) -> None:
        stored = self.query("SELECT count(*) FROM report WHERE study_id = :study")[0][0]
        assert stored == len(self.answers) == len(self.run(self.site.events("report_recorded")))

    @invariant()
    def no_slot_idles_while_something_could_run(self) -> None:
        if self.run(self.site.study()).state != "ACTIVE" or self.closes():
            return
        free = self.query(
            "SELECT owner FROM slot JOIN worker w ON w.id = worker_id"
            f" WHERE grant_id IS NULL AND present AND w.name LIKE '{self.site.name}-%'"
            # nothing more is placed where the first trials failed
            " AND NOT (SELECT coalesce(standing -> 'avoided' ? w.incarnation, false) FROM study WHERE id = :study)"
        )
        runnable = self.query(
            "SELECT milestone FROM trial WHERE study_id = :study AND state IN ('PENDING', 'PAUSED')"
            " AND milestone IS NOT NULL AND NOT user_paused"
        )
        low = self.site.spec.bubbles and any(trial.milestone < self.spec.max_steps for trial in runnable)
        assert not ([slot for slot in free if low or not slot.owner] and runnable)

    @invariant()
    def what_a_trial_had_come_to_when_it_was_over_stays(self) -> None:
        """However it continues from there: its completions stay on record, and it never counts for less."""
        for row in self.query("SELECT * FROM trial WHERE study_id = :study"):
            trial = rows.trial(row)
            known = self.completions.setdefault(trial.number, [])
            if trial.reason is Reason.COMPLETED and trial.step not in [step for step, _ in known]:
                known.append((trial.step, trial.value))
            ends = [*trial.earlier_ends, *([trial] if trial.reason is Reason.COMPLETED else [])]
            assert {end.step for end in ends if end.reason is Reason.COMPLETED} == {step for step, _ in known}
            finite = [value for _, value in known if value is not None and isfinite(value)]
            if finite:
                assert trial.counts_as is not Reason.FAILED
                assert trial.score is not None
                assert trial.score <= min(finite)
            if not trial.earlier_ends:
                assert trial.counted_end is None

    @invariant()
    def a_study_closes_only_while_a_trial_of_it_runs(self) -> None:
        """All of these were told to leave at their next report, and nothing else was started."""
        if self.closes():
            live = self.query("SELECT grant_id FROM lease WHERE study_id = :study AND live")
            asked = self.query("SELECT grant_id FROM leave WHERE study_id = :study AND at_report")
            assert live
            assert {row.grant_id for row in live} <= {row.grant_id for row in asked}

    @invariant()
    def an_ended_study_leaves_nothing_behind(self) -> None:
        if self.run(self.site.study()).state in ("COMPLETED", "FAILED", "STOPPED"):
            assert {row.state for row in self.run(self.site.trials())} <= {"TERMINATED"}

    @invariant()
    def a_rebuilt_policy_would_promote_the_same(self) -> None:
        if self.site.fold is None:
            return
        fresh = Fold.empty(self.spec, make_sampler(self.spec))
        for row in self.query("SELECT * FROM trial WHERE study_id = :study ORDER BY number"):
            fresh.joined(row.number, row.bracket, row.params, baseline=row.baseline)
        results = self.query("SELECT * FROM rung_result WHERE study_id = :study ORDER BY cursor")
        for row in results:
            fresh.record(rows.rung_entry(row))
        for row in results:
            if row.promoted_cursor is not None:
                fresh.promoted(row.number, row.bracket, row.rung)
        for row in self.query("SELECT number FROM trial WHERE study_id = :study AND state = 'TERMINATED'"):
            fresh.policy.withdraw(row.number)
        assert fresh.policy.next_promotion() == self.site.fold.policy.next_promotion()

    @invariant()
    def a_promotion_is_filed_under_the_event_that_tells_of_it(self) -> None:
        untold = self.query(
            "SELECT r.number, r.rung FROM rung_result r LEFT JOIN event e"
            " ON e.study_id = r.study_id AND e.cursor = r.promoted_cursor AND e.number = r.number"
            " WHERE r.study_id = :study AND r.promoted_cursor IS NOT NULL"
            " AND (e.cursor IS NULL OR r.promoted_cursor <= r.cursor)"
        )
        assert untold == []

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            found = replay(self.spec, self.run(self.site.log()))
            self.run(self.clear())
            self.run(self.engine.dispose())
            self.runner.close()
            assert found.identical, found.differences
            assert not found.reworded

    async def clear(self) -> None:
        async with self.engine.begin() as conn:
            await conn.execute(
                text("UPDATE study SET state = 'STOPPED', end_time = now() WHERE end_time IS NULL")
            )
            await conn.execute(text("DELETE FROM slot"))
            await conn.execute(text("DELETE FROM lease"))
            await conn.execute(text("DELETE FROM slot_grant"))
            await conn.execute(text("DELETE FROM worker"))


def test_the_step_keeps_its_promises(database_url: str) -> None:
    StepMachine.url = database_url
    case = StepMachine.TestCase
    case.settings = settings(
        max_examples=HISTORIES,
        stateful_step_count=25,
        deadline=None,
        derandomize=HISTORIES <= 100,
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()
