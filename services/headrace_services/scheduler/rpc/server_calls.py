"""GetServerInfo: information about this server."""
# ruff: noqa: ARG002  (every method takes the call's context)

from sqlalchemy import text

from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc.calls import Calls, Context
from headrace_services.scheduler.store.database import transaction


class ServerCalls(Calls):
    """Calls about the scheduler itself."""

    info = pb.GetServerInfoResponse()
    """The part of it that never changes while the scheduler runs."""

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """Information about this server, and the present schema of its database."""
        async with transaction(self.hub.engine) as conn:
            row = (await conn.execute(text("SELECT version_num FROM alembic_version"))).scalar_one_or_none()
        answer = pb.GetServerInfoResponse()
        answer.CopyFrom(self.info)
        answer.database_schema = row or ""
        return answer
