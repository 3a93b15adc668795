"""StudyService: every call that users make, by subject."""
# ruff: noqa: ARG002  (every method takes the call's context)

from headrace.v1 import study_pb2 as pb
from headrace.v1.study_pb2_grpc import StudyServiceServicer
from headrace_services.scheduler.rpc import convert, pages
from headrace_services.scheduler.rpc.ask_tell_calls import AskTellCalls
from headrace_services.scheduler.rpc.calls import Context
from headrace_services.scheduler.rpc.study_calls import StudyCalls
from headrace_services.scheduler.rpc.trial_calls import TrialCalls
from headrace_services.scheduler.store import cluster
from headrace_services.scheduler.store.database import transaction


# grpc.aio also takes a coroutine that writes to the context (TellTrials), which the stubs do not know.
class StudyServicer(StudyCalls, TrialCalls, AskTellCalls, StudyServiceServicer):  # type: ignore[misc]
    """What users call. Construct with the replica's hub."""

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersResponse:
        """The workers that are or were connected, by name."""
        window = pages.window(request, (str,))
        after = str(window.after[0]) if window.after else ""
        async with transaction(self.hub.engine) as conn:
            found = await cluster.workers_after(conn, name=after, limit=window.limit)
            shares = [] if after else await cluster.shares(conn)
        messages, token = window.fill(found, convert.worker, lambda worker: (worker.name,))
        return pb.ListWorkersResponse(
            workers=messages, next_page_token=token, shares=map(convert.share, shares)
        )
