"""A trial that could run but does not says what it waits for."""

import asyncio
import re
from typing import Any

import pytest
from rpc_site import RpcSite
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.cli import why
from headrace.client import AsyncClient
from headrace.client.aio import AsyncStudy
from headrace.client.model import TrialInfo
from headrace.spec import StudySpec
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.placement.wants import described
from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction

GIB = 1 << 30
TEMPLATE = {"callable": "nothing:runs", "working_dir": "/"}


async def connect(engine: AsyncEngine, name: str, gpus: int) -> None:
    devices = tuple(
        workers.Device(index=n, kind="GPU", model="H200", memory_bytes=80 * GIB, uuid=f"{name}-{n}")
        for n in range(gpus)
    )
    greeting = workers.Greeting(
        name=name, incarnation="1", devices=devices, labels={}, version="", log_dir="/l"
    )
    async with transaction(engine) as conn:
        await workers.greet(conn, greeting, 3600)


async def create(client: AsyncClient, name: str, **changes: Any) -> AsyncStudy:
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "template": TEMPLATE,
        "resources": {"gpus": 4},
        "max_trials": 3,
        "max_steps": 4,
    }
    return await client.create_study(name, StudySpec.model_validate({**fields, **changes}))


async def trials(study: AsyncStudy) -> list[TrialInfo]:
    """The three trials, once the study's first cycle has created them and placed those that it can."""
    async with asyncio.timeout(60):
        while len(found := await study.trials()) < 3:
            await asyncio.sleep(0.02)
    assert [await study.trial(number).info() for number in range(3)] == sorted(found, key=lambda t: t.number)[
        :3
    ]
    return sorted(found, key=lambda trial: trial.number)[:3]


async def test_it_waits_for_a_worker_that_is_large_enough(site: RpcSite, engine: AsyncEngine) -> None:
    async with AsyncClient(site.replicas[0].address) as client:
        study = await create(client, "large")
        assert {trial.waits_for for trial in await trials(study)} == {"a connected worker with 4 GPUs"}
        await connect(engine, "small", 2)
        await connect(engine, "small too", 2)
        assert {trial.waits_for for trial in await trials(study)} == {"a connected worker with 4 GPUs"}
        story = await study.trial(0).explain()
        assert story.trial.waits_for == "a connected worker with 4 GPUs"
        assert (await study.status()).waits_for == "4 GPUs"
        assert [one.waits_for for one in await client.studies() if one.name == "large"] == ["4 GPUs"]
        async for update in study.watch():
            assert update.study.waits_for == "4 GPUs"
            break


async def test_it_says_which_parameter_decides_how_much_it_takes(site: RpcSite, engine: AsyncEngine) -> None:
    async with AsyncClient(site.replicas[0].address) as client:
        space = {"batch": {"type": "categorical", "values": [64, 1024]}}
        sizes = {"parameter": "batch", "rows": [{"value": 64, "gpus": 1}, {"value": 1024, "gpus": 4}]}
        enqueued = [{"batch": 1024}, {"batch": 64}, {"batch": 1024}]
        study = await create(client, "unequal", space=space, resources={"by": sizes}, enqueued=enqueued)
        large, small, _ = await trials(study)
        assert large.waits_for == "a connected worker with 4 GPUs (batch = 1024 requires this)"
        assert small.waits_for == "a connected worker with 1 GPU (batch = 64 requires this)"
        assert (await study.status()).waits_for == "4 GPUs"


async def test_it_waits_for_slots_that_others_have(site: RpcSite, engine: AsyncEngine) -> None:
    await connect(engine, "large", 4)
    async with AsyncClient(site.replicas[0].address) as client:
        study = await create(client, "first")
        runs, waits, _ = await trials(study)
        assert (runs.waits_for, runs.worker, runs.slot_milli) == ("", "large", 1000)
        assert (waits.waits_for, waits.worker, waits.slot_milli) == (
            "4 GPUs to be free on one worker",
            None,
            0,
        )
        assert (await study.status()).waits_for == "", "one of its trials runs"


async def test_a_share_of_a_gpu_is_reported(site: RpcSite, engine: AsyncEngine) -> None:
    await connect(engine, "one", 1)
    async with AsyncClient(site.replicas[0].address) as client:
        study = await create(client, "shares", resources={"gpu_milli": 500})
        found = await trials(study)
        assert [trial.slot_milli for trial in found] == [500, 500, 0]
        assert [trial.waits_for for trial in found] == ["", "", "0.5 of a GPU to be free"]


@pytest.mark.parametrize(
    ("changes", "waits_for"),
    [
        ({"max_parallel": 1}, "a running trial of its study to end: at most 1 run at once (max_parallel)"),
        ({"template": None, "resources": {}}, "the next ask"),
    ],
)
async def test_it_waits_for_its_own_study(
    site: RpcSite, engine: AsyncEngine, changes: dict[str, Any], waits_for: str
) -> None:
    await connect(engine, "large", 8)
    async with AsyncClient(site.replicas[0].address) as client:
        study = await create(client, "own", **changes)
        assert (await trials(study))[2].waits_for == waits_for


async def test_bubbles_would_do_as_well_for_low_rungs(site: RpcSite, engine: AsyncEngine) -> None:
    fields = {"resources": {"gpus": 1, "gpu_memory_bytes": GIB}, "bubbles": True}
    async with AsyncClient(site.replicas[0].address) as client:
        low = await create(client, "low", policy={"kind": "asha", "rungs": [1, 4]}, **fields)
        assert (await trials(low))[0].waits_for.endswith(", or for bubbles of a large job")
        last = await create(client, "last", **fields)
        assert "bubbles" not in (await trials(last))[0].waits_for
    assert engine


async def test_it_waits_for_people(site: RpcSite, engine: AsyncEngine) -> None:
    await connect(engine, "large", 4)
    async with AsyncClient(site.replicas[0].address) as client:
        study = await create(client, "people")
        await trials(study)
        await study.trial(0).pause()
        assert (await study.trial(0).info()).waits_for == ""  # it runs until its next rung
        await study.trial(1).pause()
        await study.pause()
        _, held, waits = await trials(study)
        assert held.waits_for == "a user to resume it"
        assert (await study.status()).waits_for == ""
        assert waits.waits_for == "the study to be resumed (paused by a user)"


async def test_why_begins_with_what_holds_a_trial(site: RpcSite, engine: AsyncEngine) -> None:
    await connect(engine, "large", 1)
    async with AsyncClient(site.replicas[0].address) as client:
        study = await create(client, "held", resources={"gpus": 1})
        await trials(study)

        async def held(number: int) -> list[str]:
            return why.held_by(await study.trial(number).explain(), await study.status())

        assert await held(0) == []
        await study.trial(0).pause()
        await study.trial(1).pause()
        (line,) = await held(0)
        assert re.fullmatch(
            r"pauses at its next rung: requested by a user at \d\d:\d\d:\d\d\. "
            r"Resume it: `headrace resume held 0`",
            line,
        )
        (line,) = await held(1)
        assert re.fullmatch(r"paused by a user at \d\d:\d\d:\d\d\. Resume it: `headrace resume held 1`", line)
        await study.pause()
        assert (await held(1))[1:] == ["its study is paused. Resume it: `headrace resume held`"]
        await study.resume()
        await study.trial(1).resume()
        await study.trial(0).stop()
        assert "paused" not in "".join(await held(0) + await held(1))


async def test_a_study_waits_for_a_user_where_all_that_is_left_is_paused(
    site: RpcSite, engine: AsyncEngine
) -> None:
    async with AsyncClient(site.replicas[0].address) as client:
        study = await create(client, "left", template=None, resources={})
        await trials(study)
        for number in range(3):
            assert (await study.status()).waits_for == ""
            await study.trial(number).pause()
        assert (await study.status()).waits_for == "a user to resume trials 0, 1 and 2"
        await study.trial(1).resume()
        assert (await study.status()).waits_for == ""
    assert engine


def test_a_request_is_named_by_all_that_it_asks_for() -> None:
    request = Request(slots=2, memory_bytes=40 * GIB, types=("A100", "H100"), labels={"zone": "a"}, cores=8)
    assert described(request) == "2 GPUs of 40 GiB (A100 or H100), 8 cores, label zone=a"
    assert described(Request(gpu=False)) == "1 CPU slot"
