"""One of several studies on one database, driven by hand, and workers with GPUs."""

from typing import Any
from uuid import uuid4

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from test_placement_contract import islands

from headrace.spec import StudySpec
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.core.events import trial_created
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import (
    Accepted,
    PlaceNow,
    Preemption,
    ReportArrived,
)
from headrace_services.scheduler.core.records import Checkpoint, Decision, Lease, Trial
from headrace_services.scheduler.engine.cycle import CycleResult, run_cycle
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.store import quotas, studies, workers
from headrace_services.scheduler.store.database import transaction

GIB = 1 << 30


class OneStudy:
    """Runs the cycles of one of several studies in a database."""

    def __init__(self, engine: AsyncEngine, name: str, project: str = DEFAULT_PROJECT) -> None:
        self.engine, self.name, self.project = engine, name, project
        self.id = 0
        self.fold: Fold | None = None
        self.last: CycleResult | None = None
        self.leases: dict[str, Lease] = {}
        self.sequence = 0

    async def create(self, **changes: Any) -> "OneStudy":
        fields: dict[str, Any] = {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "policy": {"kind": "asha", "variant": "stopping", "eta": 2, "rungs": [2, 4, 8]},
            "template": {"callable": "t:t", "working_dir": "/tmp"},
            "resources": {"gpus": 1},
            "max_trials": 50,
            "max_steps": 8,
        }
        spec = StudySpec.model_validate({**fields, **changes})
        event = trial_created(Trial(study_id=0, number=0, params={}, milestone=None))
        async with transaction(self.engine) as conn:
            uid = uuid4().hex  # like the service's: a process caches a study under this key
            await quotas.make(conn, self.project)
            made = await studies.create(
                conn,
                project=self.project,
                name=self.name,
                uid=uid,
                spec=spec,
                planned=spec.max_trials,
                event=event,
            )
            self.id = made.id
        return self

    async def step(self, *inputs: Any) -> CycleResult:
        fold, self.fold = self.fold, None
        async with transaction(self.engine) as conn:
            submissions = [Submission(input=one) for one in inputs]
            self.last = await run_cycle(conn, self.id, submissions, fold)
        self.fold = self.last.fold
        for order in self.last.effects.orders:
            if not isinstance(order, Preemption) and order.lease.study_id == self.id:
                self.leases[order.lease.id] = order.lease
        return self.last

    async def kick(self) -> list[Lease]:
        before = set(self.leases)
        await self.step(PlaceNow())
        return [lease for key, lease in self.leases.items() if key not in before]

    async def tell(
        self, lease: Lease, step: int, *, saved: bool = True, train_time_s: float = 1.0
    ) -> Decision:
        self.sequence += 1
        report = ReportArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=self.sequence,
            step=step,
            metrics={"loss": 0.5},
            checkpoint=Checkpoint(uri=f"file:///{lease.number}/{step}", step=step) if saved else None,
            train_time_s=train_time_s,
        )
        outcome = (await self.step(report)).settled[0].outcome
        assert isinstance(outcome, Accepted), outcome
        assert outcome.decision is not None
        return outcome.decision

    async def standing(self) -> dict[str, Any]:
        return dict((await query(self.engine, "SELECT standing FROM study WHERE id = :i", i=self.id))[0][0])


async def query(engine: AsyncEngine, sql: str, **values: Any) -> list[Any]:
    async with engine.connect() as conn:
        return list((await conn.execute(text(sql), values)).all())


async def connect(
    engine: AsyncEngine, name: str, gpus: int, *, model: str = "H200", cpus: int = 0, island: int = 0
) -> int:
    joined = islands(gpus, island) if island else [()] * gpus
    devices = tuple(
        workers.Device(
            index=n, kind="GPU", model=model, memory_bytes=80 * GIB, uuid=f"{name}-{n}", links=joined[n]
        )
        for n in range(gpus)
    )
    greeting = workers.Greeting(
        name=name, incarnation="1", devices=devices, labels={}, version="", log_dir="/l", cpus=cpus
    )
    async with transaction(engine) as conn:
        return (await workers.greet(conn, greeting, 3600))[0]
