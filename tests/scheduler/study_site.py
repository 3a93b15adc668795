"""Runs the cycles of one study on a real database, one transaction per call, without any server."""

import itertools
import secrets
from collections import Counter
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.client.convert_events import event as client_event
from headrace.client.events import Event
from headrace.errors import HeadraceError
from headrace.spec import StudySpec
from headrace_services.scheduler.core.capacity import TurnCost
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import (
    Accepted,
    Assignment,
    ExitedArrived,
    Input,
    Order,
    Outcome,
    PlaceNow,
    ReportArrived,
)
from headrace_services.scheduler.core.needs import Named
from headrace_services.scheduler.core.records import Checkpoint, Decision, Lease, Study
from headrace_services.scheduler.engine.cycle import CycleResult, run_cycle
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.rpc import convert as rpc_convert
from headrace_services.scheduler.samplers import expected_trials
from headrace_services.scheduler.store import history, tables, workers
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.load import open_study

ASHA = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "promotion"}


def make_spec(**changes: Any) -> StudySpec:
    """Return a small study on workers; `changes` replace whole fields."""
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "policy": ASHA,
        "template": {"callable": "train:train", "working_dir": "/tmp"},
        "max_trials": 9,
        "max_steps": 9,
        "seed": 1,
    }
    return StudySpec.model_validate({**fields, **changes})


async def lock_study(conn: AsyncConnection, study_id: int) -> Study | None:
    """Let no cycle of a study proceed until the transaction ends."""
    return (await open_study(conn, study_id, Named())).study


def gone(lease: Lease, outcome: str, sequence: int = 1000, **changes: Any) -> ExitedArrived:
    """The message in which a worker says how an attempt ended."""
    return ExitedArrived(
        lease_id=lease.id,
        number=lease.number,
        attempt=lease.attempt,
        sequence=sequence,
        outcome=outcome,
        **changes,
    )


class StudySite:
    """One study in a database."""

    _names = itertools.count()

    def __init__(self, engine: AsyncEngine, spec: StudySpec) -> None:
        self.engine = engine
        self.spec = spec
        self.name = f"study-{next(self._names)}"
        self.study_id = 0
        self.fold: Fold | None = None
        self.orders: list[Order] = []
        self.leases: dict[str, Lease] = {}
        self.sequences: Counter[str] = Counter()
        self.last: CycleResult | None = None

    async def create(self) -> "StudySite":
        """Insert the study's row, like `store.studies.create` but without its first event."""
        columns = {
            "name": self.name,
            "uid": secrets.token_hex(6),
            "state": "ACTIVE",
            "spec": self.spec.model_dump(mode="json"),
            "planned": expected_trials(self.spec),
        }
        async with transaction(self.engine) as conn:
            query = insert(tables.study).values(**columns).returning(tables.study.c.id)
            self.study_id = (await conn.execute(query)).scalar_one()
        return self

    async def connect(
        self,
        name: str = "w",
        slots: int = 2,
        *,
        incarnation: str = "1",
        gpus: int = 0,
        labels: dict[str, str] | None = None,
        memory_bytes: int = 8,
        model: str = "",
        unshared: int = 0,
    ) -> int:
        """Connect a worker and return its id. The first `unshared` devices cannot be shared."""
        devices = [
            workers.Device(
                index=index,
                kind="GPU" if index < gpus else "CPU",
                model=model,
                memory_bytes=memory_bytes,
                uuid="",
                unshared=index < unshared,
            )
            for index in range(slots)
        ]
        greeting = workers.Greeting(
            name=f"{self.name}-{name}",
            incarnation=incarnation,
            devices=tuple(devices),
            labels=labels or {},
            version="",
            log_dir="/l",
        )
        async with transaction(self.engine) as conn:
            worker_id, _ = await workers.greet(conn, greeting, 3600)
        return worker_id

    async def step(self, *inputs: Input) -> list[Outcome | HeadraceError]:
        """Run one cycle and return the outcomes; orders collect in `orders`, leases in `leases`."""
        submissions = [Submission(input=one) for one in inputs]
        fold, self.fold = self.fold, None
        async with transaction(self.engine) as conn:
            result = await run_cycle(conn, self.study_id, submissions, fold)
        self.fold, self.last = result.fold, result
        self.orders.extend(result.effects.orders)
        for order in result.effects.orders:
            if isinstance(order, Assignment):
                self.leases[order.lease.id] = order.lease
        return [settled.outcome for settled in result.settled]

    async def kick(self) -> list[Lease]:
        """Let the study place what it can and return the new leases."""
        before = set(self.leases)
        await self.step(PlaceNow())
        return [lease for key, lease in self.leases.items() if key not in before]

    def report(
        self,
        lease: Lease,
        step: int,
        value: float | None,
        *,
        saved: bool = True,
        sequence: int | None = None,
        turn: TurnCost | None = None,
    ) -> ReportArrived:
        """Make a report of a lease's holder, with the next sequence unless one is given."""
        if sequence is None:
            self.sequences[lease.id] += 1
            sequence = self.sequences[lease.id]
        return ReportArrived(
            lease_id=lease.id,
            number=lease.number,
            attempt=lease.attempt,
            sequence=sequence,
            step=step,
            metrics={} if value is None else {"loss": value},
            checkpoint=Checkpoint(uri=f"file:///{lease.number}/{step}", step=step) if saved else None,
            turn=turn,
        )

    async def tell(self, lease: Lease, step: int, value: float | None, *, saved: bool = True) -> Decision:
        """Report and return the decision."""
        (outcome,) = await self.step(self.report(lease, step, value, saved=saved))
        assert isinstance(outcome, Accepted), outcome
        assert outcome.decision is not None
        return outcome.decision

    async def trial(self, number: int) -> Any:
        """Return a trial's row."""
        t = tables.trial
        return (await self.rows(select(t).where(t.c.study_id == self.study_id, t.c.number == number)))[0]

    async def trials(self) -> list[Any]:
        """Return all trials' rows in order."""
        t = tables.trial
        return await self.rows(select(t).where(t.c.study_id == self.study_id).order_by(t.c.number))

    async def study(self) -> Any:
        """Return the study's row."""
        return (await self.rows(select(tables.study).where(tables.study.c.id == self.study_id)))[0]

    async def events(self, kind: str | None = None) -> list[Any]:
        """Return the event log, or the events of a kind."""
        e = tables.event
        query = select(e).where(e.c.study_id == self.study_id).order_by(e.c.cursor)
        return await self.rows(query.where(e.c.kind == kind) if kind else query)

    async def log(self) -> list[Event]:
        """Return the event log as a client reads it."""
        async with self.engine.connect() as conn:
            stored = await history.events_after(conn, self.study_id, 0, 100_000)
        return [client_event(rpc_convert.event(event)) for event in stored]

    async def rows(self, query: Any) -> list[Any]:
        """Return the rows of a query."""
        async with self.engine.connect() as conn:
            return list((await conn.execute(query)).all())
