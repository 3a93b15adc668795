"""GetServerInfo: what serves here."""
# ruff: noqa: ARG002  (every method takes the call's context)

from sqlalchemy import text

from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc.calls import Calls, Context
from headrace_services.scheduler.store.database import transaction


class ServerCalls(Calls):
    """The scheduler itself."""

    info = pb.GetServerInfoResponse()
    """What never changes of it while it runs."""

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        """What serves here, and the schema that its database has now."""
        async with transaction(self.hub.engine) as conn:
            row = (await conn.execute(text("SELECT version_num FROM alembic_version"))).scalar_one_or_none()
        answer = pb.GetServerInfoResponse()
        answer.CopyFrom(self.info)
        answer.database_schema = row or ""
        return answer
