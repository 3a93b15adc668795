"""A scheduler's user-facing edge on loopback, over a real database: real hubs, real servers, one or more replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.error_status import from_rpc_error
from headrace.errors import HeadraceError
from headrace.spec import StudySpec, params_from_proto, to_proto
from headrace.v1 import event_pb2, trial_pb2
from headrace.v1 import study_pb2 as pb
from headrace.v1.code_pb2_grpc import add_CodeServiceServicer_to_server as add_code_service
from headrace.v1.project_pb2_grpc import ProjectServiceStub
from headrace.v1.project_pb2_grpc import add_ProjectServiceServicer_to_server as add_project_service
from headrace.v1.study_pb2_grpc import StudyServiceStub
from headrace.v1.study_pb2_grpc import add_StudyServiceServicer_to_server as add_study_service
from headrace_services.scheduler.analysis import AnalysisPools
from headrace_services.scheduler.analysis.pools import IMPORTANCES
from headrace_services.scheduler.core.inputs import LeaseExpired
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.rpc.code_service import CodeServicer
from headrace_services.scheduler.rpc.interceptors import make_server_interceptors
from headrace_services.scheduler.rpc.project_service import ProjectServicer
from headrace_services.scheduler.rpc.study_service import StudyServicer
from headrace_services.scheduler.store import tables, workers
from headrace_services.scheduler.store.database import transaction

TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class Replica:
    """One scheduler: its hub, and a client's stub to its server."""

    hub: Hub
    stub: Any
    address: str
    projects: Any = None
    """A stub of the ProjectService."""

    async def call(self, method: str, request: Any, timeout_s: float = TIMEOUT_S) -> Any:
        """Call a method; raises the HeadraceError that the client would see."""
        try:
            return await getattr(self.stub, method)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def call_in(self, project: str, method: str, request: Any) -> Any:
        """Call a method as a member of a project. For a stream, return its first message."""
        stub = self.stub if hasattr(self.stub, method) else self.projects
        called = getattr(stub, method)(request, timeout=TIMEOUT_S, metadata=(("headrace-project", project),))
        try:
            return await (called.read() if isinstance(called, grpc.aio.UnaryStreamCall) else called)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        finally:
            called.cancel()

    async def refusal(self, method: str, request: Any) -> HeadraceError:
        """The error with which a call is refused."""
        try:
            answer = await self.call(method, request)
        except HeadraceError as error:
            return error
        raise AssertionError(f"{method} was not refused: {answer}")

    async def watch(
        self, request: pb.WatchStudyRequest, timeout_s: float = TIMEOUT_S
    ) -> AsyncIterator[pb.WatchStudyResponse]:
        """Watch a study; raises the HeadraceError that the client would see."""
        stream = self.stub.WatchStudy(request, timeout=timeout_s)
        try:
            async for response in stream:
                yield response
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        finally:
            stream.cancel()


@dataclass(kw_only=True)
class RpcSite:
    """Replicas over one database. Calls go to the first one."""

    engine: AsyncEngine
    stack: AsyncExitStack
    replicas: list[Replica] = field(default_factory=list)

    async def add_replica(self) -> Replica:
        """Start another scheduler."""
        replica = await self.stack.enter_async_context(serving(self.engine))
        self.replicas.append(replica)
        return replica

    async def call(self, method: str, request: Any) -> Any:
        """Call a method of the first replica."""
        return await self.replicas[0].call(method, request)

    async def refusal(self, method: str, request: Any) -> HeadraceError:
        """The error with which the first replica refuses a call."""
        return await self.replicas[0].refusal(method, request)

    async def create(self, study_id: str = "s", **changes: Any) -> pb.Study:
        """Create an ask/tell study; `changes` replace whole fields of its spec."""
        request = pb.CreateStudyRequest(study_id=study_id, spec=to_proto(make_spec(**changes)))
        await self.call("CreateStudy", request)
        return await self.ready(study_id)

    async def ready(self, study_id: str) -> pb.Study:
        """A new study after its first cycle, which proposes the first trials."""
        async with asyncio.timeout(TIMEOUT_S):
            while not (await self.study(study_id)).status.pending:
                await asyncio.sleep(0.01)
        return await self.study(study_id)  # the one above may have been read while the cycle committed

    async def study(self, study_id: str = "s") -> pb.Study:
        """A study."""
        return (await self.call("GetStudy", pb.GetStudyRequest(name=f"studies/{study_id}"))).study

    async def suggest(self, study_id: str = "s", client: str = "c", **fields: Any) -> pb.SuggestTrialResponse:
        """Ask for a trial."""
        request = pb.SuggestTrialRequest(study=f"studies/{study_id}", client_id=client, **fields)
        return await self.call("SuggestTrial", request)

    async def report(
        self, lease: event_pb2.LeaseRef, step: int, value: float | None, **fields: Any
    ) -> event_pb2.Decision:
        """Report a step."""
        metrics = {} if value is None else {"loss": value}
        fields = {"checkpoint_uri": f"mem:/{lease.lease_id}/{step}"} | fields
        request = pb.ReportTrialRequest(lease=lease, step=step, metrics=metrics, **fields)
        return (await self.call("ReportTrial", request)).decision

    async def drive(
        self, objective: Callable[[dict[str, Any], int], float | None], study_id: str = "s", clients: int = 3
    ) -> None:
        """Run a study to its end with several clients at once, over all replicas in turn."""

        async def client(name: str, replica: Replica) -> None:
            while True:
                request = pb.SuggestTrialRequest(study=f"studies/{study_id}", client_id=name)
                found = await replica.call("SuggestTrial", request)
                if found.done:
                    return
                if not found.HasField("trial"):
                    await asyncio.sleep(0.01)
                    continue
                params = params_from_proto(found.trial.parameters)
                step = found.trial.checkpoint.step
                action = event_pb2.DECISION_ACTION_CONTINUE
                while action == event_pb2.DECISION_ACTION_CONTINUE:
                    step += 1
                    value = objective(params, step)
                    report = pb.ReportTrialRequest(
                        lease=found.lease,
                        step=step,
                        metrics={} if value is None else {"loss": value},
                        checkpoint_uri=f"mem:/{found.trial.number}/{step}",
                    )
                    action = (await replica.call("ReportTrial", report)).decision.action

        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(client(f"client-{number}", self.replicas[number % len(self.replicas)]))

    async def trials(self, study_id: str = "s") -> list[trial_pb2.Trial]:
        """All trials."""
        request = pb.ListTrialsRequest(study=f"studies/{study_id}", page_size=1000)
        return list((await self.call("ListTrials", request)).trials)


def make_spec(**changes: Any) -> StudySpec:
    """A small ask/tell study."""
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "random"},
        "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]},
        "max_trials": 9,
        "max_steps": 9,
        "seed": 1,
    }
    return StudySpec.model_validate({**fields, **changes})


def duration(seconds: float) -> Duration:
    """A Duration."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


async def expire(site: RpcSite, number: int) -> None:
    """Let the lease of a trial expire, as the sweep does when its client is silent for too long."""
    study = await site.study()
    async with transaction(site.engine) as conn:
        await conn.execute(
            update(tables.lease).where(tables.lease.c.number == number).values(expires_at="2000-01-01")
        )
        found, _ = await workers.expired_leases(conn)
        info = await workers.study_by_uid(conn, study.uid)
    assert info is not None
    for one in found:
        lease = one.lease
        expired = LeaseExpired(
            lease_id=lease.id, number=lease.number, attempt=lease.attempt, sequence=None, why=one.why
        )
        await site.replicas[0].hub.submit(info.id, Submission(input=expired))


@asynccontextmanager
async def serving(engine: AsyncEngine) -> AsyncIterator[Replica]:
    """A replica on a port of its own."""
    server = grpc.aio.server(interceptors=make_server_interceptors())
    ready: asyncio.Future[Hub] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def run_hub() -> None:
        async with asyncio.TaskGroup() as tasks:
            ready.set_result(Hub(engine, tasks))
            await over.wait()
            await ready.result().drain()

    running = asyncio.create_task(run_hub())
    hub = await ready
    # The machine may be busy: even a fit of one second must finish.
    analysis = AnalysisPools(importances=replace(IMPORTANCES, time_s=120, wait_s=120))
    add_study_service(StudyServicer(hub, analysis), server)
    add_project_service(ProjectServicer(hub), server)
    add_code_service(CodeServicer(engine), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(address) as channel:
        yield Replica(
            hub=hub,
            stub=StudyServiceStub(channel),
            address=address,
            projects=ProjectServiceStub(channel),
        )
    await server.stop(0)
    await analysis.close()
    over.set()
    await running
