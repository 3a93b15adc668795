"""The simulator's cycles over rows in memory and the service's over Postgres decide alike, event by event.

A simulation runs with its event log on. The inputs that arrived in it are then sent, in the same order, to the
transaction on a real database. Only the study's uid in the leases differs, and the proposals' values, which the
simulator does not draw.
"""

import math
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import Input, Leased, LeaseExpired, ReportArrived
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.simulator import engine as engine_module
from headrace_services.scheduler.simulator.cluster import Machine
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.curves import SeedModel
from headrace_services.scheduler.simulator.cycle import cycle
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.workers import Device, Greeting, greet

Told = tuple[int | None, str, str]


async def both(
    engine: AsyncEngine,
    monkeypatch: pytest.MonkeyPatch,
    spec: StudySpec,
    workers: int,
    stages: int = 0,
    **more: Any,
) -> tuple[list[Told], list[Told], StudySimulation]:
    """The event logs of a simulation and of the service, on the same inputs. The last worker is next to `stages`."""
    site = await StudySite(engine, spec).create()
    inputs: list[Input] = []

    def noted(rows, studies, cluster, arrived, now_s):
        inputs.extend(arrived)
        return cycle(rows, studies, cluster, arrived, now_s)

    monkeypatch.setattr(engine_module, "cycle", noted)
    machines = [
        Machine(id=number, name=f"{site.name}-w{number}", model="", slots=1)
        for number in range(1, workers + 1)
    ]
    if stages:
        name, own = f"{site.name}-w{workers + 1}", {"owner": "gpt", "duty": 0.25, "memory_bytes": 8}
        machines.append(Machine(id=workers + 1, name=name, model="", slots=stages, **own))
    curves = SeedModel.of(spec, seed=3, trials=spec.max_trials + 1)
    study = StudySimulation.of(spec, curves, costs=Costs(write_s=0.5, read_s=0.25), name=site.name, log=True)
    Simulation(machines, [study], **more).run()
    for number in range(1, workers + 1):
        await site.connect(f"w{number}", slots=1, gpus=1)
    if stages:
        await beside(site, f"w{workers + 1}", stages)
    uid = (await site.study()).uid
    for one in inputs:
        if isinstance(one, Leased):
            one = replace(one, lease_id=one.lease_id.replace("sim1.", f"{uid}."))
        if isinstance(one, LeaseExpired):
            async with engine.begin() as conn:
                silent = update(tables.lease).where(tables.lease.c.id == one.lease_id)
                await conn.execute(silent.values(expires_at=func.now()))
        await site.step(one)
    assert study.rows.events is not None
    simulated = [told(event.number, event.kind, event.message) for event in study.rows.events]
    served = [
        told(row.number, row.kind, row.message.replace(f" {uid}.", " sim1.")) for row in await site.events()
    ]
    assert sum(isinstance(one, ReportArrived) for one in inputs) > spec.max_trials
    return simulated, served, study


async def beside(site: StudySite, name: str, stages: int) -> None:
    stage = {"kind": "GPU", "model": "", "memory_bytes": 8, "uuid": "", "owner": "gpt", "duty": 0.25}
    devices = tuple(Device(index=number, stage=number, **stage) for number in range(stages))
    greeting = Greeting(
        name=f"{site.name}-{name}", incarnation="1", devices=devices, labels={}, version="", log_dir="/l"
    )
    async with transaction(site.engine) as conn:
        await greet(conn, greeting, 3600)


def told(number: int | None, kind: str, message: str) -> Told:
    named = kind in ("trial_created", "trial_exploited")  # with parameters, which differ
    return number, kind, message.partition(":")[0] if named else message


POLICIES: dict[str, dict[str, Any]] = {
    "auto": {"kind": "auto", "rungs": [1, 3, 9, 27]},
    "asha": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9, 27]},
    "asha-stopping": {"kind": "asha", "variant": "stopping", "eta": 3, "rungs": [1, 3, 9, 27]},
    "hedged": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9, 27], "arrival": "optimistic", "effort": 0.3},
    "brackets": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9, 27], "brackets": 3},
    "hyperband": {"kind": "hyperband"},
    "pbt": {"kind": "pbt", "interval": 9, "quantile": 0.5},
    "rung_median": {"kind": "rung_median", "rungs": [3, 9, 18, 27]},
}


@pytest.mark.cases(4)
@pytest.mark.parametrize("most", [1, 4], ids=["alone", "in bundles"])
@pytest.mark.parametrize("name", POLICIES)
async def test_equal_inputs_equal_events(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    fuse = {"most": most} if most > 1 else None
    spec = make_spec(policy=POLICIES[name], max_trials=12, max_steps=27, fuse=fuse)
    simulated, served, study = await both(engine, monkeypatch, spec, workers=3 if most == 1 else 1)
    assert any(" of 4 in bundle " in message for _, _, message in served) == (most > 1)
    assert simulated == served
    assert study.rows.study.state is StudyState.COMPLETED


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("fuse", [None, {"most": 4}])
async def test_in_bubbles_too(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, workers: int, fuse: dict[str, Any] | None
) -> None:
    """The stages have memory for two members of a full bundle of four."""
    asked = {"gpus": 1, "gpu_memory_bytes": 16 if fuse and not workers else 8}
    spec = make_spec(
        policy=POLICIES["asha"], max_trials=12, max_steps=27, bubbles=True, resources=asked, fuse=fuse
    )
    simulated, served, study = await both(engine, monkeypatch, spec, workers=workers, stages=2)
    assert simulated == served
    assert study.rows.study.state is StudyState.COMPLETED
    assert any("in bubbles of job gpt" in message for _, _, message in served)


async def test_machines_that_fail_change_nothing_about_that(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service keeps its workers here: it learns of expired leases, like the simulation's own scheduler."""
    spec = make_spec(policy=POLICIES["asha"], max_trials=9, max_steps=27, baseline={"x": 0.5})
    failures = Failures(mean_time_s=60.0, seed=1)
    simulated, served, study = await both(engine, monkeypatch, spec, workers=2, failures=failures)
    assert study.record.interruptions > 0
    assert simulated == served
    assert math.isfinite(study.record.end_s)
