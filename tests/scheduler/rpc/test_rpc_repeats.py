"""What is announced about a study's repeats, before it is created or extended, is what its trials then do."""

import re

import pytest
from rpc_site import RpcSite

from headrace.client import AsyncClient, AsyncStudy
from headrace.spec import StudySpec


async def points_of(study: AsyncStudy) -> list[object]:
    """Runs all trials and returns their points in order."""
    while (asked := await study.ask()) is not None:
        await asked.report(1, loss=float(asked.params["n"]))
    return [trial.params["n"] for trial in await study.trials()]


async def test_trials_repeat_as_many_points_as_was_said(site: RpcSite) -> None:
    spec = StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"n": {"type": "int", "low": 1, "high": 4}},
            "policy": {"kind": "run_all"},
            "max_trials": 3,
            "max_steps": 1,
        }
    )
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("few", spec)
        assert len(set(await points_of(study))) == 3
        said = (
            "The space has 4 points and the study would have 6 trials: of the 3 trials added, 2 will repeat"
        )
        with pytest.warns(UserWarning, match=said):
            await study.extend(trials=3)
        found = await points_of(study)
        assert len(set(found[:4])) == 4
        assert len(found) == 6

        more = spec.model_copy(update={"max_trials": 7})
        said = "The space has 4 points and the study 7 trials: .* 3 trials will repeat one"
        (warning,) = (await client.preview(more)).warnings
        assert re.match(said, warning)
        with pytest.warns(UserWarning, match=said):
            again = await client.create_study("more", more)
        found = await points_of(again)
        assert len(set(found[:4])) == 4
        assert len(found) == 7
