"""The SDK against the real service: what one side writes the other side reads."""

import asyncio

import pytest
from rpc_site import RpcSite, make_spec

from headrace import errors
from headrace.client import AsyncClient
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
