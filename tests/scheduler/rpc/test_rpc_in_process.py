"""An in-process study against the same study on a server: the same configurations, decisions and ends."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rpc_site import RpcSite

from headrace import optimize
from headrace.client import AsyncClient
from headrace.client.events import Action
from headrace.client.model import TrialInfo
from headrace.spec import StudySpec
from headrace.trial import Trial

SPACE = {"x": {"type": "float", "low": 0.0, "high": 1.0}}


def loss(x: float, step: int) -> float:
    return abs(x - 0.5) + 1 / step


def steps_of(t: Trial) -> Iterator[float]:
    for step in range(1, t.max_steps + 1):
        yield loss(t["x"], step)


async def on_a_server(site: RpcSite, spec: StudySpec) -> list[TrialInfo]:
    async with AsyncClient(site.replicas[0].address) as client:
        study = await client.create_study("in-process", spec)
        async for asked in study.ask_all(client_id="loop"):
            step, action = asked.step, Action.CONTINUE
            while action is Action.CONTINUE:
                step += 1
                decision = await asked.report(
                    step,
                    loss=loss(float(asked.params["x"]), step),
                    checkpoint_uri=f"memory:{asked.number}" if spec.pauses else "",
                )
                action = decision.action
        return await study.trials()


def without_times(trial: TrialInfo) -> TrialInfo:
    rungs = tuple(replace(rung, time=None) for rung in trial.rungs)
    return replace(trial, created=None, started=None, ended=None, rungs=rungs)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "asha", "rungs": [1, 3, 9]},
        {"kind": "asha", "rungs": [1, 3, 9], "variant": "stopping"},
        {"kind": "hyperband", "rungs": [1, 3, 9]},
        {"kind": "median", "interval": 1},
    ],
    ids=lambda policy: f"{policy['kind']}-{policy.get('variant', '')}",
)
async def test_a_study_in_process_is_the_study_on_a_server(site: RpcSite, policy: dict[str, Any]) -> None:
    result = optimize(
        steps_of, SPACE, trials=15, steps=9, minimize="loss", policy=policy, sampler="random", retries=1
    )
    served = await on_a_server(site, result.study.spec)
    assert [without_times(one) for one in result.trials] == [without_times(one) for one in served]
    assert len({one.step for one in result.trials}) > 1
