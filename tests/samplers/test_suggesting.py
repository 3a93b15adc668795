"""Proposals from real processes, on a real Postgres: a failing sampler never blocks a study.

(OSS Vizier's users complain that a suggestion that fails once keeps its client waiting forever.)
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import pytest
import pytest_asyncio
import sampler_faults
from sampler_studies import spec_of
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import (
    ExitedArrived,
    ExtendStudy,
    ProposalComingError,
    Proposed,
    ReportArrived,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.records import Event, Proposal
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.samplers import Suggestion
from headrace_services.scheduler.store import database, studies, tables
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.suggesting import suggester as module
from headrace_services.scheduler.suggesting.pool import Learnt, Pool
from headrace_services.scheduler.suggesting.process import Question, work
from headrace_services.scheduler.suggesting.suggester import Suggester

X = {"x": {"type": "float", "low": 0.0, "high": 1.0}}


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = open_engine(database_url)
    yield engine
    await engine.dispose()


class Replica:
    """One replica's hub and suggester, and the clients that ask it for trials."""

    def __init__(self, hub: Hub, pool: Pool, suggester: Suggester) -> None:
        self.hub = hub
        self.pool = pool
        self.suggester = suggester

    async def create(self, spec: StudySpec, name: str | None = None) -> int:
        event = Event(number=None, kind="note", message="created", detail={})
        async with transaction(self.hub.engine) as conn:
            study = await studies.create(
                conn,
                name=name or f"s-{secrets.token_hex(4)}",
                uid=secrets.token_hex(6),
                spec=spec,
                planned=spec.max_trials,
                event=event,
            )
        return study.id

    async def suggest(self, study_id: int) -> Suggested:
        """Ask for a trial until there is an answer."""
        async with self.hub.watching(study_id) as changed:
            while True:
                try:
                    settled = await self.hub.submit(
                        study_id, Submission(input=Suggest(client_id="c", ttl_s=600.0))
                    )
                except ProposalComingError:
                    await changed.wait(0.5)
                    continue
                assert isinstance(settled.outcome, Suggested)
                return settled.outcome

    async def finish(self, study_id: int, asked: Suggested, **metrics: float) -> None:
        """Report a trial's only step."""
        assert asked.lease is not None
        lease = {"lease_id": asked.lease.id, "number": asked.lease.number, "attempt": asked.lease.attempt}
        report = ReportArrived(**lease, sequence=None, step=1, metrics=metrics, checkpoint=None)
        await self.hub.submit(study_id, Submission(input=report))
        exited = ExitedArrived(**lease, sequence=None, outcome="FINISHED")
        await self.hub.submit(study_id, Submission(input=exited))

    async def play(self, study_id: int, trials: int) -> list[Suggested]:
        """Run that many trials, one after the other."""
        made = []
        for _ in range(trials):
            asked = await self.suggest(study_id)
            if asked.trial is None:
                break
            made.append(asked)
            await self.finish(study_id, asked, loss=(float(asked.trial.params["x"]) - 0.3) ** 2)
        return made

    async def rows(self, query: Any) -> list[Any]:
        async with transaction(self.hub.engine) as conn:
            return list(await conn.execute(query))

    async def events(self, study_id: int, kind: str) -> list[Any]:
        e = tables.event
        return await self.rows(
            select(e).where(e.c.study_id == study_id, e.c.kind == kind).order_by(e.c.cursor)
        )


@asynccontextmanager
async def replica(
    engine: AsyncEngine, *, work: Callable[[Connection], None] = work, limit_s: float = 60.0
) -> AsyncIterator[Replica]:
    async with asyncio.TaskGroup() as tasks:
        hub = Hub(engine, tasks)
        pool = Pool(1, limit_s=limit_s, work=work)
        suggester = Suggester(hub, pool, tasks)
        hub.propose_with(suggester.want)
        looking = tasks.create_task(suggester.run())
        try:
            async with asyncio.timeout(100):
                yield Replica(hub, pool, suggester)
        finally:
            looking.cancel()
            await hub.drain()
            suggester.close()


def study(kind: str = "tpe", trials: int = 8, **changes: Any) -> StudySpec:
    sampler = {"kind": kind, **({"startup_trials": 2} if kind in ("tpe", "gp") else {})}
    return spec_of(kind, X, **{"sampler": sampler, "max_trials": trials, **changes})


@pytest.mark.full
async def test_an_extended_study_has_its_further_proposals_from_the_pool(engine: AsyncEngine) -> None:
    async with replica(engine) as site:
        study_id = await site.create(study(trials=4))
        assert len(await site.play(study_id, 9)) == 4
        await site.hub.submit(study_id, Submission(input=ExtendStudy(trials=3, steps=None)))
        further = await site.play(study_id, 9)
        assert [asked.trial.number for asked in further if asked.trial] == [4, 5, 6]
        ended = await site.events(study_id, "proposals_ended")
        assert [event.detail["proposals"] for event in ended] == [4, 7]


async def test_a_study_runs_to_its_end_on_proposals_of_the_pool(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        study_id = await one.create(study())
        made = await one.play(study_id, 20)
        assert [asked.trial.number for asked in made if asked.trial] == list(range(8))
        assert (await one.suggest(study_id)).done
        created = await one.events(study_id, "trial_created")
        basis = [row.detail.get("proposal") for row in created]
        assert basis[:2] == [None, None]  # the startup draws need no model
        assert [entry["sampler"] for entry in basis[2:]] == [
            "random" if entry["results"] < 2 else "tpe" for entry in basis[2:]
        ]
        results = [entry["results"] for entry in basis[2:]]
        assert results == sorted(results)
        assert results[-1] >= 5
        assert "proposed by tpe from" in created[-1].message


@pytest.mark.cases(1)
@pytest.mark.parametrize("fault", ["throws_at_first", "dies_at_first"])
async def test_a_suggest_that_fails_is_retried(
    engine: AsyncEngine, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    async with replica(engine, work=getattr(sampler_faults, fault)) as one:
        study_id = await one.create(study(trials=5))
        assert len(await one.play(study_id, 20)) == 5
        assert await one.events(study_id, "proposal_failed") == []
        created = await one.events(study_id, "trial_created")
        assert [row.detail["proposal"]["sampler"] for row in created[2:]] in (
            [["random", "tpe"][n:][:1] + ["tpe"] * 2 for n in (0, 1)]
        )


@pytest.mark.full
async def test_a_sampler_that_always_fails_never_wedges_a_study(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OSS Vizier's clients wait forever after one failed suggestion. Here random draws take over, and say why."""
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    async with replica(engine, work=sampler_faults.always_throws) as one:
        study_id = await one.create(study(trials=6))
        made = await one.play(study_id, 20)
        assert len(made) == 6
        assert len({asked.trial.params["x"] for asked in made if asked.trial}) == 6
        failed = await one.events(study_id, "proposal_failed")
        assert [row.detail["proposal"] for row in failed] == [2, 3, 4, 5]
        assert [row.detail["attempts"] for row in failed] == [3, 1, 1, 1]
        assert "the kernel matrix is singular" in failed[0].message
        (row,) = await one.rows(select(tables.study.c.state))
        assert row.state == "COMPLETED"


@pytest.mark.full
@pytest.mark.parametrize("fault", ["hangs_at_three", "exits_at_once", "leaves_the_space"])
async def test_a_process_that_hangs_or_lies_never_wedges_a_study(
    engine: AsyncEngine, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "ATTEMPTS", 2)
    limit_s = 3.0 if fault == "hangs_at_three" else 60.0
    async with replica(engine, work=getattr(sampler_faults, fault), limit_s=limit_s) as one:
        study_id = await one.create(study(trials=5))
        made = await one.play(study_id, 20)
        assert all(0 <= float(asked.trial.params["x"]) <= 1 for asked in made if asked.trial)
        failed = await one.events(study_id, "proposal_failed")
        assert len(made) == 5
        assert len(failed) == (0 if fault == "hangs_at_three" else 3)  # killed, and tried again


@pytest.mark.full
async def test_results_that_take_too_long_to_read_never_wedge_a_study(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(conn: AsyncConnection, *_: object) -> NoReturn:
        await conn.execute(text("SELECT pg_sleep(60)"))
        raise AssertionError("the statement timeout comes first")

    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "read", slow)
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_MS", 500)
    engine = database.open_engine(database_url)
    async with asyncio.timeout(60), replica(engine) as one:
        study_id = await one.create(study(trials=4))
        assert len(await one.play(study_id, 20)) == 4
        failed = await one.events(study_id, "proposal_failed")
        assert [row.detail["attempts"] for row in failed] == [3, 1]
        assert "statement timeout" in failed[0].message
    await engine.dispose()


@pytest.mark.full
async def test_two_replicas_that_race_create_no_duplicates(engine: AsyncEngine) -> None:
    async with replica(engine) as left, replica(engine) as right:
        study_id = await left.create(study(trials=10))
        await asyncio.gather(left.play(study_id, 20), right.play(study_id, 20))
        rows = await left.rows(select(tables.trial).order_by(tables.trial.c.number))
        assert [row.number for row in rows] == list(range(10))
        (row,) = await left.rows(select(tables.study))
        assert (row.sampled, row.state) == (10, "COMPLETED")


async def test_a_proposal_counts_once_and_in_its_turn(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        study_id = await one.create(study("nsga2", trials=9, sampler={"kind": "nsga2", "population": 4}))
        arrivals = [
            Proposed(index=index, params={"x": 0.5}, proposal=Proposal(sampler="nsga2", generation=0))
            for index in (1, 0, 0, 3, 1)
        ]
        one.hub.propose_with(lambda *_: None)
        for arrival in arrivals:
            await one.hub.submit(study_id, Submission(input=arrival))
        rows = await one.rows(select(tables.trial).order_by(tables.trial.c.number))
        assert [(row.number, row.generation) for row in rows] == [(0, 0), (1, 0)]


async def test_proposals_are_made_ahead_of_need_and_few(engine: AsyncEngine) -> None:
    """One client at a time: one configuration waits, made while the previous trial runs."""
    async with replica(engine) as one:
        study_id = await one.create(study(trials=9))
        for _ in range(5):
            asked = await one.suggest(study_id)
            waiting = select(tables.trial).where(tables.trial.c.state == "PENDING")
            async with one.hub.watching(study_id) as changed, asyncio.timeout(60):
                while len(await one.rows(waiting)) < 1:
                    await changed.wait(0.1)
            assert asked.trial is not None
            await one.finish(study_id, asked, loss=1.0)
        rows = await one.rows(select(tables.trial).where(tables.trial.c.state == "PENDING"))
        assert 1 <= len(rows) <= 4


@pytest.mark.full
async def test_a_study_whose_replica_died_is_helped_by_another(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SWEEP_EVERY_S", 0.2)
    async with replica(engine) as dead:
        dead.hub.propose_with(lambda *_: None)  # its cycles need proposals, and nobody makes them
        study_id = await dead.create(study("sobol", trials=3))
        with pytest.raises(ProposalComingError):
            await dead.hub.submit(study_id, Submission(input=Suggest(client_id="c", ttl_s=600.0)))
        async with replica(engine) as alive, asyncio.timeout(60):
            assert (await alive.suggest(study_id)).trial is not None


@pytest.mark.full
async def test_a_warm_start_feeds_what_belongs_to_the_space(engine: AsyncEngine) -> None:
    async with replica(engine) as one:
        wide = {"x": {"type": "float", "low": -1.0, "high": 1.0}}
        first = await one.create(spec_of("random", wide, max_trials=30), name="earlier")
        await one.play(first, 30)
        rows = await one.rows(select(tables.trial.c.params).where(tables.trial.c.study_id == first))
        fitting = sum(0 <= row.params["x"] <= 1 for row in rows)
        second = await one.create(study(trials=2, warm_start={"study": "earlier", "max_trials": 12}))
        await one.play(second, 2)
        created = await one.events(second, "trial_created")
        assert created[0].detail["proposal"]["warm_results"] == min(12, fitting)
        assert "of an earlier study" in created[0].message


@pytest.mark.full
async def test_a_warm_start_counts_trials_that_were_stopped_early(engine: AsyncEngine) -> None:
    """They reached the first rung, so they count there, as within a study."""
    policy = {"kind": "asha", "eta": 2, "rungs": [1, 2], "variant": "stopping"}
    async with replica(engine) as one:
        first = await one.create(study(trials=6, policy=policy, max_steps=2), name="raced")
        for _ in range(6):
            asked = await one.suggest(first)
            assert asked.trial is not None
            assert asked.lease is not None
            lease = {"lease_id": asked.lease.id, "number": asked.lease.number, "attempt": asked.lease.attempt}
            report = ReportArrived(
                **lease, sequence=1, step=1, metrics={"loss": float(asked.trial.number)}, checkpoint=None
            )
            await one.hub.submit(first, Submission(input=report))
        ended = await one.rows(select(tables.trial.c.reason).where(tables.trial.c.study_id == first))
        assert sum(row.reason == "STOPPED_EARLY" for row in ended) >= 3
        second = await one.create(study(trials=1, policy=policy, max_steps=2, warm_start={"study": "raced"}))
        await one.suggest(second)
        (created, *_) = await one.events(second, "trial_created")
        assert created.detail["proposal"]["warm_results"] == 6


@pytest.mark.full
async def test_draws_before_a_model_are_not_those_of_the_earlier_study(engine: AsyncEngine) -> None:
    """The seed and the space are the same, and `why` says that they are draws."""
    async with replica(engine) as one:
        first = await one.create(study("tpe", trials=3), name="small")
        await one.play(first, 3)
        second = await one.create(study("tpe", trials=3, warm_start={"study": "small", "max_trials": 1}))
        await one.play(second, 3)
        params = [
            {
                row.params["x"]
                for row in await one.rows(select(tables.trial).where(tables.trial.c.study_id == found))
            }
            for found in (first, second)
        ]
        assert not params[0] & params[1]
        (created, *_) = await one.events(second, "trial_created")
        assert created.detail["proposal"]["sampler"] == "random"
        assert "drawn at random" in created.message


@pytest.mark.full
async def test_the_model_is_fed_from_the_highest_rung_with_enough_results(engine: AsyncEngine) -> None:
    policy = {"kind": "asha", "eta": 2, "rungs": [1, 2], "variant": "stopping"}
    async with replica(engine) as one:
        study_id = await one.create(study(trials=26, policy=policy, max_steps=2))
        for _ in range(26):
            asked = await one.suggest(study_id)
            assert asked.trial is not None
            assert asked.lease is not None
            lease = {"lease_id": asked.lease.id, "number": asked.lease.number, "attempt": asked.lease.attempt}
            for step in (1, 2):
                report = ReportArrived(
                    **lease,
                    sequence=None,
                    step=step,
                    metrics={"loss": (float(asked.trial.params["x"]) - 0.3) ** 2},
                    checkpoint=None,
                )
                settled = await one.hub.submit(study_id, Submission(input=report))
                if settled.outcome.decision.action != "CONTINUE":  # type: ignore[union-attr]  # it was accepted
                    break
        created = await one.events(study_id, "trial_created")
        levels = [row.detail["proposal"]["milestone"] for row in created[2:]]
        assert levels[0] == 1
        assert levels[-1] == 2
        assert levels == sorted(levels)


async def raced(one: Replica, spec: StudySpec, name: str, trials: int) -> list[int]:
    """Run that many trials of two steps, where the rules decide which ones take the second, and count the results
    before each."""
    study_id = await one.create(spec, name=name)
    results, before = 0, []
    for _ in range(trials):
        asked = await one.suggest(study_id)
        assert asked.trial is not None
        assert asked.lease is not None
        before.append(results)
        lease = {"lease_id": asked.lease.id, "number": asked.lease.number, "attempt": asked.lease.attempt}
        for step in (1, 2):
            metrics = {"loss": (float(asked.trial.params["x"]) - 0.3) ** 2}
            report = ReportArrived(**lease, sequence=None, step=step, metrics=metrics, checkpoint=None)
            settled = await one.hub.submit(study_id, Submission(input=report))
            results += 1
            if settled.outcome.decision.action != "CONTINUE":  # type: ignore[union-attr]  # it was accepted
                break
    return before


@pytest.mark.full
async def test_a_model_over_all_rungs_is_told_each_result_once(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"kind": "asha", "eta": 2, "rungs": [1, 2], "variant": "stopping"}
    told: list[tuple[float, int]] = []
    ask = Pool.ask

    async def noted(self: Pool, study_id: int, question: Question, now: Learnt) -> Suggestion:
        told.extend((float(result.params["x"]), result.level) for result in question.fresh)
        return await ask(self, study_id, question, now)

    monkeypatch.setattr(Pool, "ask", noted)
    sampler = {"kind": "multi_fidelity", "startup_trials": 4}
    async with replica(engine) as one:
        spec = study("multi_fidelity", trials=16, policy=policy, max_steps=2, sampler=sampler)
        before = await raced(one, spec, "told", 16)
        assert len(told) == len(set(told))
        assert {level for _, level in told} == {1, 2}
        (row,) = await one.rows(select(tables.study).where(tables.study.c.name == "told"))
        created = await one.events(row.id, "trial_created")
        basis = [entry.detail["proposal"] for entry in created[4:]]
        # One is proposed ahead of need, while the previous trial runs.
        slack = [most - entry["results"] for most, entry in zip(before[4:], basis, strict=True)]
        assert all(0 <= by <= 4 for by in slack), slack
        assert {entry["milestone"] for entry in basis} == {0}
        assert "results at all rungs" in created[-1].message
        late = [
            abs(float(entry.detail["parameters"]["values"]["x"]["float_value"]) - 0.3) for entry in created
        ]
        assert sum(late[-5:]) < 0.5 * sum(late[:5])


@pytest.mark.full
async def test_a_model_over_all_rungs_starts_again_when_the_budget_grows(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a process that starts at that moment: proposals do not depend on which process makes them."""
    asked: list[tuple[Question, Learnt]] = []
    ask = Pool.ask

    async def noted(self: Pool, study_id: int, question: Question, now: Learnt) -> Suggestion:
        asked.append((question, now))
        return await ask(self, study_id, question, now)

    monkeypatch.setattr(Pool, "ask", noted)
    sampler = {"kind": "multi_fidelity", "startup_trials": 2}
    async with replica(engine) as one:
        study_id = await one.create(study("multi_fidelity", trials=5, sampler=sampler))
        assert len(await one.play(study_id, 9)) == 5
        assert [question.begin is not None for question, _ in asked] == [True, False, False]
        await one.hub.submit(study_id, Submission(input=ExtendStudy(trials=2, steps=2)))
        await one.suggest(study_id)
        while len(asked) < 4:
            await one.suggest(study_id)
        question, learnt = asked[3]
        assert question.begin is not None
        assert question.begin.spec.max_steps == 2
        assert [result.level for result in question.fresh] == [1] * 5
        assert (learnt.among, learnt.results) == ((1, 2), 5)


@pytest.mark.full
async def test_a_warm_start_of_a_model_over_all_rungs_brings_the_results_at_each(engine: AsyncEngine) -> None:
    policy = {"kind": "asha", "eta": 2, "rungs": [1, 2], "variant": "stopping"}
    sampler = {"kind": "multi_fidelity", "startup_trials": 4}
    async with replica(engine) as one:
        spec = study("multi_fidelity", trials=6, policy=policy, max_steps=2, sampler=sampler)
        await raced(one, spec, "first", 6)
        first = await one.rows(select(tables.trial.c.step).order_by(tables.trial.c.number))
        again = study(
            "multi_fidelity",
            trials=1,
            policy=policy,
            max_steps=2,
            sampler=sampler,
            warm_start={"study": "first"},
        )
        second = await one.create(again)
        await one.suggest(second)
        (created, *_) = await one.events(second, "trial_created")
        assert created.detail["proposal"]["sampler"] == "multi_fidelity"
        assert created.detail["proposal"]["warm_results"] == sum(row.step for row in first) > 6


@pytest.mark.full
async def test_a_report_that_crosses_several_rungs_is_told_once(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the report comes from an earlier study."""
    told: list[tuple[float, int]] = []
    ask = Pool.ask

    async def noted(self: Pool, study_id: int, question: Question, now: Learnt) -> Suggestion:
        results = (*(question.begin.warm if question.begin is not None else ()), *question.fresh)
        told.extend((result.values[0], result.level) for result in results)
        return await ask(self, study_id, question, now)

    monkeypatch.setattr(Pool, "ask", noted)
    sampler = {"kind": "multi_fidelity", "startup_trials": 2}
    fields: dict[str, Any] = {"policy": {"kind": "median"}, "max_steps": 100, "sampler": sampler}
    async with replica(engine) as one:
        first = await one.create(study("multi_fidelity", trials=3, **fields), name="sparse")
        for number in range(2):
            asked = await one.suggest(first)
            assert asked.lease is not None
            lease = {"lease_id": asked.lease.id, "number": asked.lease.number, "attempt": asked.lease.attempt}
            for step in (10, 35, 100):
                metrics = {"loss": 1000.0 * number + step}
                report = ReportArrived(**lease, sequence=None, step=step, metrics=metrics, checkpoint=None)
                await one.hub.submit(first, Submission(input=report))
        await one.suggest(first)  # proposed ahead, it may be from the results of one trial
        at = {10: 8, 35: 32, 100: 100}
        expected = [(1000.0 * number + step, level) for number in range(2) for step, level in at.items()]
        assert len(told) >= 3
        assert sorted(told) == expected[: len(told)]
        told.clear()
        again = study("multi_fidelity", trials=1, warm_start={"study": "sparse"}, **fields)
        await one.suggest(await one.create(again))
        assert sorted(told) == expected


async def test_each_result_is_read_and_sent_once(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads for a proposal do not grow with the number of trials (optuna issues 3053, 3048, 4444)."""
    sent: list[int] = []
    ask = Pool.ask

    async def counted(self: Pool, study_id: int, question: Question, now: Learnt) -> Suggestion:
        sent.append(len(question.fresh))
        return await ask(self, study_id, question, now)

    monkeypatch.setattr(Pool, "ask", counted)
    async with replica(engine) as one:
        study_id = await one.create(study(trials=30))
        assert len(await one.play(study_id, 30)) == 30
        assert sum(sent) <= 30
        assert max(sent[1:]) <= 4
