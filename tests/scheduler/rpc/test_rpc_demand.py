"""What `headrace launch` reads: which trials wait for slots, and which slots are free."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rpc_site import RpcSite
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.client import Client
from headrace.launch.decision import FreeSlots, Kind, Need
from headrace.launch.demand import ByClient
from headrace.launch.loop import Cluster
from headrace.spec import StudySpec
from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction

GIB = 1 << 30
KIND = Kind(slots=4, on_gpu=True)
Do = Callable[[Client], object]


async def connect(engine: AsyncEngine, name: str, *, gpus: int = 0, cpus: int = 0, **labels: str) -> None:
    kinds = ["GPU"] * gpus + ["CPU"] * cpus
    devices = tuple(
        workers.Device(
            index=n,
            kind=kind,
            model="H200" if kind == "GPU" else "cpu",
            memory_bytes=80 * GIB,
            uuid=f"{name}-{n}",
        )
        for n, kind in enumerate(kinds)
    )
    greeting = workers.Greeting(
        name=name, incarnation="1", devices=devices, labels=labels, version="", log_dir="/l"
    )
    async with transaction(engine) as conn:
        await workers.greet(conn, greeting, 3600)


async def do(site: RpcSite, work: Do) -> Any:
    def with_client() -> object:
        with Client(site.replicas[0].address) as client:
            return work(client)

    return await asyncio.to_thread(with_client)


async def create(site: RpcSite, name: str, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "policy": {"kind": "run_all"},
        "template": {"callable": "nothing:runs", "working_dir": "/"},
        "resources": {"gpus": 1},
        "max_trials": 6,
        "max_steps": 4,
        **changes,
    }
    await do(site, lambda client: client.create_study(name, StudySpec.model_validate(fields)))


async def look(site: RpcSite, until: Callable[[Cluster], object] = lambda found: found.needs) -> Cluster:
    """What the loop sees, once a study's first cycle is over."""

    async def now() -> Cluster:
        found: Cluster = await do(site, lambda client: ByClient(client).look(KIND, 10))
        return found

    return await eventually(now, until)


async def eventually(read: Callable[[], Awaitable[Cluster]], holds: Callable[[Cluster], object]) -> Cluster:
    async with asyncio.timeout(60):
        while not holds(found := await read()):
            await asyncio.sleep(0.05)
    return found


def count(found: Cluster) -> dict[tuple[str, int], int]:
    return {(need.study, need.slots): need.count for need in found.needs}


async def test_an_untouched_cluster_needs_nothing(site: RpcSite) -> None:
    assert await look(site, lambda _: True) == Cluster(needs=[], free=[], connected=frozenset())


async def test_all_trials_of_a_study_without_workers_wait_also_those_not_yet_proposed(site: RpcSite) -> None:
    await create(site, "s", resources={"gpus": 1, "labels": {"zone": "eu"}})
    found = await look(site)
    assert found.needs == [Need(count=6, slots=1, on_gpu=True, labels={"zone": "eu"}, study="s")]


async def test_parallel_bounds_what_waits_and_running_trials_count(
    site: RpcSite, engine: AsyncEngine
) -> None:
    await create(site, "s", max_parallel=3)
    assert count(await look(site)) == {("s", 1): 3}
    await connect(engine, "w", gpus=1)
    await do(site, lambda client: client.study("s").resume())  # a cycle, which places one
    found = await look(site, lambda found: found.connected and not found.free)
    assert count(found) == {("s", 1): 2}


async def test_paused_studies_and_ask_tell_studies_need_nothing(site: RpcSite) -> None:
    await create(site, "paused")
    await look(site)
    await do(site, lambda client: client.study("paused").pause())
    await create(site, "asked", template=None, resources={})
    assert (await look(site, lambda found: not found.needs)).needs == []


async def test_trials_that_a_user_paused_do_not_wait(site: RpcSite) -> None:
    await create(site, "s", max_trials=2)
    await look(site)
    for number in range(2):
        await do(site, lambda client, n=number: client.study("s").trial(n).pause())  # type: ignore[misc]
    assert (await look(site, lambda found: not found.needs)).needs == []


async def test_sizes_that_depend_on_a_parameter_are_counted_apart(site: RpcSite) -> None:
    space = {"batch": {"type": "categorical", "values": [64, 1024]}}
    sizes = {"parameter": "batch", "rows": [{"value": 64, "gpus": 1}, {"value": 1024, "gpus": 4}]}
    enqueued = [{"batch": 1024}, {"batch": 64}, {"batch": 1024}]
    await create(site, "s", space=space, resources={"by": sizes}, enqueued=enqueued, max_trials=3)
    found = await look(site, lambda found: sum(need.count for need in found.needs) == 3)
    assert count(found)[("s", 4)] >= 1


async def test_trials_that_share_a_process_count_as_one(site: RpcSite) -> None:
    await create(site, "s", fuse={"most": 4})
    assert count(await look(site)) == {("s", 1): 2}


async def test_a_quota_bounds_what_waits(site: RpcSite) -> None:
    await do(site, lambda client: client.set_project("default", slots=2))
    await create(site, "s")
    assert count(await look(site)) == {("s", 1): 2}


async def test_the_studies_of_a_project_share_what_its_quota_leaves(site: RpcSite) -> None:
    await do(site, lambda client: client.set_project("default", slots=2))
    for name in ("a", "b", "c"):
        await create(site, name)
        await look(site)
    assert sum(count(await look(site)).values()) == 2


async def test_free_slots_are_those_on_which_trials_may_start(site: RpcSite, engine: AsyncEngine) -> None:
    await connect(engine, "both", gpus=2, cpus=3, zone="eu")
    await connect(engine, "drained", gpus=8)
    await connect(engine, "cordoned", gpus=2)
    await do(site, lambda client: client.drain("drained"))
    await do(site, lambda client: client.cordon("cordoned", [1]))
    found = await look(site, lambda found: len(found.connected) == 3)
    assert sorted(found.free, key=lambda one: (len(one.free), one.on_gpu)) == [
        FreeSlots(free=(1000,), on_gpu=True, labels={}),
        FreeSlots(free=(1000, 1000), on_gpu=True, labels={"zone": "eu"}),
        FreeSlots(free=(1000, 1000, 1000), on_gpu=False, labels={"zone": "eu"}),
    ]
    assert found.connected == {"both", "drained", "cordoned"}
