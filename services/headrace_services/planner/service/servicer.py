"""PlannerService: three calls, each of which passes bytes to a worker and returns bytes. Errors become statuses
here."""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status

from headrace.error_status import to_status
from headrace.errors import HeadraceError, InternalError
from headrace.v1 import planner_pb2 as pb
from headrace.v1 import planner_pb2_grpc
from headrace_services.identity.admitted import who_pays
from headrace_services.planner.service.pool import Pool
from headrace_services.planner.service.work import Task
from headrace_services.sandbox import Answer

log = logging.getLogger(__name__)
Context = grpc.aio.ServicerContext[Any, Any]


class PlannerServicer(planner_pb2_grpc.PlannerServiceServicer):
    """Passes questions to a pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def Plan(self, request: pb.PlanRequest, context: Context) -> AsyncIterator[pb.PlanResponse]:
        """Progress, then the plan."""
        async with (
            _translating(context),
            aclosing(
                self._pool.ask(Task.PLAN, request.SerializeToString(), caller=who_pays(context.peer()))
            ) as told,
        ):
            async for kind, payload in told:
                if kind is Answer.PROGRESS:
                    yield pb.PlanResponse(progress=pb.PlanProgress.FromString(payload))
                else:
                    yield pb.PlanResponse.FromString(payload)

    async def Simulate(self, request: pb.SimulateRequest, context: Context) -> pb.SimulateResponse:
        """Degrees that the caller chose."""
        return pb.SimulateResponse.FromString(await self._result(Task.SIMULATE, request, context))

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Why the plan won."""
        return pb.ExplainResponse.FromString(await self._result(Task.EXPLAIN, request, context))

    async def _result(self, task: Task, request: Message, context: Context) -> bytes:
        async with _translating(context):
            return await self._pool.result(task, request.SerializeToString(), caller=who_pays(context.peer()))
        raise AssertionError("aborting raises")


@asynccontextmanager
async def _translating(context: Context) -> AsyncIterator[None]:
    """Turn an exception into the status of the call. Cancellation is passed on."""
    try:
        yield
    except HeadraceError as error:
        await _abort(context, error)
    except grpc.aio.AbortError:
        raise
    except Exception:
        log.exception("a call failed")
        await _abort(context, InternalError("the planner failed on this call"))


async def _abort(context: Context, error: HeadraceError) -> NoReturn:
    await context.abort_with_status(rpc_status.to_status(to_status(error)))
    raise AssertionError("abort raises")
