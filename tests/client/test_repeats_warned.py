"""A study with more trials than different configurations causes a warning before anything is sent."""

from pathlib import Path
from typing import Any

import pytest
from fake_study_service import FakeStudyService

import headrace
from headrace.client import AsyncClient, Client

FEW: dict[str, Any] = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"n": {"type": "int", "low": 1, "high": 6}},
    "policy": "run_all",
    "trials": 20,
    "steps": 1,
}
SAID = "The space has 6 points and the study 20 trials: .* set `trials: 6`"


def test_a_creation_warns_at_the_users_own_line_before_it_sends_anything(
    client: Client, fake: FakeStudyService
) -> None:
    with pytest.raises(UserWarning, match=SAID):
        client.create_study("few", FEW)  # a warning is an error in these tests
    assert fake.requests["CreateStudy"] == []
    with pytest.warns(UserWarning, match=SAID) as caught:
        client.create_study("few", FEW)
    assert [Path(one.filename) for one in caught] == [Path(__file__)]
    client.create_study("silent", FEW, warn=False)
    client.create_study("enough", FEW | {"trials": 6})


async def test_so_does_one_of_the_asynchronous_client(client: Client, fake: FakeStudyService) -> None:
    async with AsyncClient(fake.address) as one:
        with pytest.warns(UserWarning, match=SAID) as caught:
            await one.create_study("few", FEW)
        assert [Path(one.filename) for one in caught] == [Path(__file__)]
        await one.create_study("silent", FEW, warn=False)


def test_so_does_a_study_in_this_process() -> None:
    def tune(trials: int) -> None:
        headrace.optimize(lambda t: float(t["n"]), FEW["space"], trials=trials, sampler="random")

    with pytest.warns(
        UserWarning, match="6 points and the study 7 trials: .*, 1 trial will repeat"
    ) as caught:
        tune(7)
    assert [Path(one.filename) for one in caught] == [Path(__file__)]
    tune(6)
