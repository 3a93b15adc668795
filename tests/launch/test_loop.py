"""The loop against a double of an engine: killed anywhere, twice at once, with answers that are lost."""

from collections import Counter
from datetime import timedelta

import pytest
from engine_double import EngineDouble, KilledError
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.errors import HeadraceError, UnreachableError
from headrace.launch import loop
from headrace.launch.decision import FreeSlots, Kind, Need
from headrace.launch.loop import Cluster, Turn
from headrace.launch.rests import FIRST_S, LONGEST_S, Rests

KIND = Kind(slots=2, on_gpu=False)


class SchedulerDouble:
    """Knows how many trials wait, and which workers are connected."""

    def __init__(self) -> None:
        self.waiting = 0
        self.connected: dict[str, int] = {}
        """Workers, with their free slots."""
        self.tokens: dict[str, str] = {}
        self.revoked: list[str] = []
        self.away = False

    def look(self, kind: Kind, most: int) -> Cluster:  # noqa: ARG002  # as the loop calls it
        if self.away:
            raise UnreachableError("No Headrace server answers.")
        return Cluster(
            needs=[Need(count=self.waiting, slots=1)] if self.waiting else [],
            free=[FreeSlots(free=(1000,) * free, on_gpu=False) for free in self.connected.values() if free],
            connected=frozenset(self.connected),
        )

    def create_token(self, worker: str, lifetime: timedelta) -> tuple[str, str]:
        assert lifetime == loop.TOKEN_LIFETIME
        token_id = f"t{len(self.tokens)}"
        self.tokens[token_id] = worker
        return token_id, f"hr_{token_id}_secret"

    def revoke_token(self, token_id: str) -> None:
        self.revoked.append(token_id)


def turn(engine: EngineDouble, scheduler: SchedulerDouble, most: int = 3) -> Turn:
    return loop.turn(engine, scheduler, kind=KIND, most=most)


def test_a_turn_requests_what_waits_and_the_next_ones_request_nothing_more() -> None:
    engine, scheduler = EngineDouble(), SchedulerDouble()
    scheduler.waiting = 3
    assert turn(engine, scheduler).decision.submit == (0, 1)
    for _ in range(3):
        assert turn(engine, scheduler).decision.submit == ()
    engine.start()
    assert turn(engine, scheduler).decision.submit == (), "they are about to connect"
    assert engine.submitted == 2


def test_a_request_whose_answer_is_lost_is_not_repeated() -> None:
    engine, scheduler = EngineDouble(), SchedulerDouble()
    scheduler.waiting, engine.loses_answers = 2, True
    (failure,) = turn(engine, scheduler).failures
    assert str(failure) == "no answer within 30 s."
    assert turn(engine, scheduler).decision.submit == ()
    assert engine.submitted == 1


def test_a_refusal_is_reported_and_tried_again_in_the_next_turn() -> None:
    engine, scheduler = EngineDouble(), SchedulerDouble()
    scheduler.waiting, engine.refuses = 2, "sbatch refused: Invalid account"
    assert [str(one) for one in turn(engine, scheduler).failures] == ["sbatch refused: Invalid account."]
    engine.refuses = ""
    assert turn(engine, scheduler).decision.submit == (0,)
    assert len(engine.jobs) == 1


def test_a_dry_turn_changes_nothing() -> None:
    engine, scheduler = EngineDouble(tokens=True), SchedulerDouble()
    scheduler.waiting = 2
    assert loop.turn(engine, scheduler, kind=KIND, most=3, act=False).decision.submit == (0,)
    assert (engine.jobs, scheduler.tokens) == ([], {})


def test_a_worker_gets_one_token_for_its_name_when_its_job_has_started_and_another_after_a_requeue() -> None:
    engine, scheduler = EngineDouble(tokens=True), SchedulerDouble()
    scheduler.waiting = 2
    turn(engine, scheduler)
    assert turn(engine, scheduler).tokens == (), "it is pending"
    (job,) = engine.start()
    assert turn(engine, scheduler).tokens == (job.worker,)
    assert turn(engine, scheduler).tokens == ()
    engine.requeue(job)
    engine.start()
    assert turn(engine, scheduler).tokens == (job.worker,)
    assert set(scheduler.tokens.values()) == {job.worker}


def test_a_token_that_another_loop_forestalled_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, scheduler = EngineDouble(tokens=True), SchedulerDouble()
    scheduler.waiting = 2
    turn(engine, scheduler)
    (job,) = engine.start()
    create = scheduler.create_token

    def late(worker: str, lifetime: timedelta) -> tuple[str, str]:
        job.token = "another loop's"
        return create(worker, lifetime)

    monkeypatch.setattr(scheduler, "create_token", late)
    assert turn(engine, scheduler).tokens == ()
    assert scheduler.revoked == list(scheduler.tokens)


def test_a_token_that_cannot_be_delivered_is_revoked() -> None:
    engine, scheduler = EngineDouble(tokens=True), SchedulerDouble()
    scheduler.waiting, engine.breaks = 2, "the disk is full"
    turn(engine, scheduler)
    engine.start()
    assert [str(one) for one in turn(engine, scheduler).failures] == ["the disk is full."]
    assert scheduler.revoked == list(scheduler.tokens) == ["t0"]


@pytest.mark.parametrize("listed", [True, False])
def test_a_seat_whose_worker_ended_without_having_connected_rests(listed: bool) -> None:
    engine, scheduler, now = EngineDouble(), SchedulerDouble(), [0.0]
    rests = Rests(clock=lambda: now[0])
    scheduler.waiting = 100
    for _ in range(8):
        found = loop.turn(engine, scheduler, kind=KIND, most=4, rests=rests)
        if listed:
            loop.turn(engine, scheduler, kind=KIND, most=4, rests=rests)
        engine.jobs.clear()
        now[0] += 1
    assert engine.submitted == 4
    assert found.resting == {0, 1, 2, 3}
    now[0] += FIRST_S
    assert loop.turn(engine, scheduler, kind=KIND, most=4, rests=rests).decision.submit == (0, 1, 2, 3)


def test_a_seat_whose_workers_go_on_failing_rests_longer_each_time() -> None:
    engine, scheduler, now = EngineDouble(), SchedulerDouble(), [0.0]
    rests = Rests(clock=lambda: now[0])
    scheduler.waiting = 100
    for _ in range(240):
        loop.turn(engine, scheduler, kind=KIND, most=1, rests=rests)
        engine.jobs.clear()
        now[0] += 15
    assert engine.submitted <= 12, "in an hour"


def test_a_seat_whose_worker_was_connected_is_filled_again_at_once() -> None:
    engine, scheduler, rests = EngineDouble(), SchedulerDouble(), Rests(clock=lambda: 0.0)
    scheduler.waiting = 2
    loop.turn(engine, scheduler, kind=KIND, most=1, rests=rests)
    (job,) = engine.start()
    scheduler.connected[job.worker] = 0
    loop.turn(engine, scheduler, kind=KIND, most=1, rests=rests)
    engine.requeue(job)
    loop.turn(engine, scheduler, kind=KIND, most=1, rests=rests)
    scheduler.connected.clear()
    engine.end(job)
    assert loop.turn(engine, scheduler, kind=KIND, most=1, rests=rests).decision.submit == (0,)


def test_a_turn_that_fails_is_reported_and_the_next_one_works() -> None:
    engine, scheduler = EngineDouble(), SchedulerDouble()
    scheduler.waiting, scheduler.away = 2, True
    said: list[Turn | HeadraceError] = []

    def rest() -> bool:
        scheduler.away = False
        return len(said) < 2

    loop.run(lambda: turn(engine, scheduler), said=said.append, rest=rest)
    assert isinstance(said[0], UnreachableError)
    assert isinstance(said[1], Turn)
    assert len(engine.jobs) == 1


class Loops(RuleBasedStateMachine):
    """Two loops and a cluster, where anything happens at any time."""

    now = 0.0

    @initialize(most=strategies.integers(1, 4))
    def begin(self, most: int) -> None:
        self.engine, self.scheduler, self.most = EngineDouble(tokens=True), SchedulerDouble(), most
        self.largest = most
        self.rests = Rests(clock=lambda: self.now)

    @rule(passed=strategies.sampled_from([1, LONGEST_S]))
    def time_passes(self, passed: float) -> None:
        self.now += passed

    @rule(most=strategies.integers(1, 4))
    def the_bound_changes(self, most: int) -> None:
        """Jobs that exist stay; while there are more, none is added."""
        self.most = most
        self.largest = max(most, len({job.seat for job in self.engine.jobs}))

    @rule(count=strategies.integers(0, 12))
    def trials_wait(self, count: int) -> None:
        self.scheduler.waiting = count

    @rule(loses=strategies.booleans(), dies_after=strategies.none() | strategies.integers(0, 3))
    def one_loop_takes_a_turn(self, loses: bool, dies_after: int | None) -> None:
        self.engine.loses_answers, self.engine.dies_after = loses, dies_after
        try:
            loop.turn(self.engine, self.scheduler, kind=KIND, most=self.most, rests=self.rests)
        except KilledError:
            pass
        finally:
            self.engine.loses_answers, self.engine.dies_after = False, None

    @rule()
    def two_loops_read_the_same_and_both_act(self) -> None:
        read = tuple(self.engine.members())
        now, self.engine.members = self.engine.members, lambda: read  # type: ignore[method-assign]
        try:
            turn(self.engine, self.scheduler, self.most)
            turn(self.engine, self.scheduler, self.most)
        finally:
            self.engine.members = now  # type: ignore[method-assign]

    @rule(room=strategies.integers(0, 4))
    def jobs_start(self, room: int) -> None:
        self.engine.start(room)

    @rule(data=strategies.data())
    def a_worker_connects(self, data: strategies.DataObject) -> None:
        joined = [job for job in self.engine.jobs if job.running and job.token]
        if joined:
            job = data.draw(strategies.sampled_from(joined))
            self.scheduler.connected[job.worker] = data.draw(strategies.integers(0, KIND.slots))

    @rule(data=strategies.data(), again=strategies.booleans())
    def a_job_ends_or_is_requeued(self, data: strategies.DataObject, again: bool) -> None:
        if self.engine.jobs:
            job = data.draw(strategies.sampled_from(self.engine.jobs))
            self.scheduler.connected.pop(job.worker, None)
            if again:
                self.engine.requeue(job)
            else:
                self.engine.end(job)

    @invariant()
    def never_more_than_the_bound(self) -> None:
        if hasattr(self, "engine"):
            assert len({job.seat for job in self.engine.jobs}) <= self.largest
            assert sum(job.running for job in self.engine.jobs) <= self.largest

    @invariant()
    def never_two_on_one_seat(self) -> None:
        if hasattr(self, "engine"):
            running = Counter(job.seat for job in self.engine.jobs if job.running)
            assert set(running.values()) <= {1}

    def teardown(self) -> None:
        """A loop that is left alone withdraws all doubles, and adds none."""
        if hasattr(self, "engine"):
            for _ in range(2):
                turn(self.engine, self.scheduler, self.most)
            assert set(Counter(job.seat for job in self.engine.jobs).values()) <= {1}
            assert not any(job.held and not job.running for job in self.engine.jobs)


Loops.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLoops = Loops.TestCase
