"""The SDK against the real service: each side reads what the other writes."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest
from rpc_site import RpcSite, make_spec

from headrace import errors
from headrace.client import AsyncClient, ask_tell
from headrace.client.aio import AsyncStudy
from headrace.client.events import Action


async def run_loop(study: AsyncStudy) -> None:
    """A user's own loop."""
    async for asked in study.ask_all(client_id="loop"):
        step = asked.step
        while True:
            step += 1
            loss = abs(float(asked.params["x"]) - 0.5) + 1 / step
            decision = await asked.report(step, loss=loss, checkpoint_uri=f"mem:/{asked.number}")
            if decision.action is not Action.CONTINUE:
                break


async def test_a_study_by_ask_and_tell_from_creation_to_deletion(site: RpcSite) -> None:
    spec = make_spec(baseline={"x": 0.5}, enqueued=[{"x": 0.25}])
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("sdk", spec)
        seen: list[int] = []

        async def follow() -> None:
            async for update in study.watch():
                seen.extend(event.cursor for event in update.events)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            await run_loop(study)
        status = await study.status()
        assert status.spec == spec
        assert status.state.ended
        assert seen == list(range(1, status.cursor + 1))
        trials = await study.trials()
        assert [trial.number for trial in trials] == list(range(10))
        assert dict(trials[1].params) == {"x": 0.25}
        assert len(await study.reports()) == sum(trial.step for trial in trials)
        story = await study.trial(1).explain()
        assert any(type(event.detail).__name__ == "DecisionMade" for event in story.events)
        with pytest.raises(errors.StudyExistsError):
            await client.create_study("sdk", spec)
        preview = await client.preview(spec)
        assert preview.trials == 9
        await study.delete()
        assert await client.studies() == []
        with pytest.raises(errors.StudyNotFoundError):
            await study.status()


async def test_a_loop_that_ends_because_its_study_failed_says_why(site: RpcSite) -> None:
    async def fail_all(study: AsyncStudy) -> None:
        async for asked in study.ask_all():
            await asked.complete(ValueError("boom"))

    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("s", make_spec(max_retries=0))
        with pytest.warns(UserWarning, match=r"Study s has failed: the first 3 trials .* ValueError: boom"):
            await fail_all(study)
        with pytest.warns(UserWarning, match="Study s has failed"):
            assert await study.ask() is None


async def test_a_client_that_waits_for_its_own_trials_is_told_so(
    site: RpcSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count()  # one more at each reading of the clock
    monkeypatch.setattr(ask_tell, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(ask_tell, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("s", make_spec(max_trials=2))
        assert all([await study.ask(), await study.ask()])
        with (
            pytest.warns(UserWarning, match="no trial to run now: callers hold trials 0, 1") as told,
            pytest.raises(
                TimeoutError, match=r"for 2 s: callers hold trials 0, 1.* lease_s .*`headrace stop s 0`"
            ),
        ):
            await study.ask(timeout_s=2.0)
        assert told[0].filename == __file__
        await study.pause()
        with pytest.raises(TimeoutError, match="it is paused"):
            await study.ask(timeout_s=0.0)


async def test_a_metric_that_is_none_is_refused(site: RpcSite) -> None:
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("s", make_spec())
        asked = await study.ask()
        assert asked is not None
        with pytest.raises(
            errors.InvalidFieldError,
            match=r"lack the objective's metric 'loss'.* None does not count",
        ):
            await asked.report(1, loss=None)
        assert await study.reports() == []
        assert (await asked.report(1, loss=0.5)).action is not Action.STOP


async def test_a_study_is_made_from_a_mapping_with_the_keys_of_a_file(site: RpcSite) -> None:
    data = {
        "name": "mapped",
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {
            "pen": {"type": "categorical", "values": ["en", "l2"]},
            "l1": {"type": "float", "low": 0.0, "high": 1.0, "when": {"pen": ["en"]}},
        },
        "trials": 3,
        "steps": 9,
    }
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study(None, data)
        assert study.name == "mapped"
        assert (await study.status()).spec.max_trials == 3
        assert (await client.preview(data)).trials == 3


async def test_a_trial_without_a_checkpoint_continues_from_the_beginning(site: RpcSite) -> None:
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("s", make_spec(policy={"kind": "run_all"}, max_trials=1))
        for uri, step in (("", 0), ("mem:/1", 1)):
            asked = await study.ask()
            assert asked is not None
            await asked.report(1, loss=0.5, checkpoint_uri=uri)
            await asked.give_back()
            again = await study.ask()
            assert again is not None
            assert (again.step, again.checkpoint is None) == (step, not uri)
            await again.give_back()
        last = await study.ask()
        assert last is not None
        await last.give_back()


@pytest.mark.full
async def test_importance_is_measured_at_the_highest_rung_with_enough_trials(site: RpcSite) -> None:
    """At rung 1 all trials are recorded, at rung 3 some, at rung 9 too few to compare."""
    space = {
        "x": {"type": "float", "low": 0.0, "high": 1.0},
        "y": {"type": "float", "low": 0.0, "high": 1.0},
    }
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("s", make_spec(space=space, max_trials=36))
        (before,) = await study.importance()
        assert (before.parameters, before.step, before.trials) == ((), 0, 0)
        assert "at most 0 trials" in before.reason
        await run_loop(study)
        (found,) = await study.importance()
        counts = {rung.milestone: rung.recorded for rung in (await study.status()).rungs}
        assert counts[9] < 10 <= counts[3] < counts[1] == 36
        assert (found.metric, found.step, found.trials, found.reason) == ("loss", 3, counts[3], "")
        assert {one.parameter for one in found.parameters} == {"x", "y"}
        assert sum(one.share for one in found.parameters) == pytest.approx(1.0)
        with pytest.raises(errors.StudyNotFoundError):
            await client.study("none").importance()
