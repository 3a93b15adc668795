"""StudyService: every call that users make, by subject."""
# ruff: noqa: ARG002  (every method takes the call's context)

from functools import partial

from headrace.v1 import study_pb2 as pb
from headrace.v1.study_pb2_grpc import StudyServiceServicer
from headrace_services.scheduler.rpc import convert, names, pages
from headrace_services.scheduler.rpc.annotation_calls import AnnotationCalls
from headrace_services.scheduler.rpc.ask_tell_calls import AskTellCalls
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.rpc.calls import Context
from headrace_services.scheduler.rpc.curve_calls import CurveCalls
from headrace_services.scheduler.rpc.log_calls import LogCalls
from headrace_services.scheduler.rpc.machine_calls import MachineCalls
from headrace_services.scheduler.rpc.server_calls import ServerCalls
from headrace_services.scheduler.rpc.study_calls import StudyCalls
from headrace_services.scheduler.rpc.trial_calls import TrialCalls
from headrace_services.scheduler.rpc.upkeep_calls import UpkeepCalls
from headrace_services.scheduler.store import cluster
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.defects import each, within

MOST_SLOTS = 10_000
"""How many slots a page of workers reads: a tenth of a second."""
MOST_SLOTS_IN_AN_HOUR = 400
"""The same if each comes with its loads of the last hour: less than 1 MiB."""


class StudyServicer(
    StudyCalls,
    TrialCalls,
    CurveCalls,
    AnnotationCalls,
    AskTellCalls,
    MachineCalls,
    LogCalls,
    ServerCalls,
    UpkeepCalls,
    StudyServiceServicer,
):
    """The calls of users. Construct it with the replica's hub, and its analysis pools for large work.

    If workers are served too, `logs` reads their trials' logs; `info` describes the server.
    """

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Context) -> pb.ListWorkersResponse:
        """The workers that are or were connected, by name. Of the trials on them only the caller's own are named."""
        window = pages.window(request, (str,))
        after, project = str(window.after[0]) if window.after else "", caller().project
        async with transaction(self.hub.engine) as conn:
            keys = await cluster.workers_after(conn, name=after, limit=window.limit)
            most = MOST_SLOTS_IN_AN_HOUR if request.history else MOST_SLOTS
            first = keys[: min(window.size, within([key.slots for key in keys], most))]
            found = await each(
                conn, first, partial(cluster.workers, conn, project=project, history=request.history)
            )
            shares, unreadable = ([], ()) if after else await cluster.shares(conn, project)
        page = window.fill(
            keys, found, convert.worker, lambda key: (key.name,), lambda key: names.worker_name(key.name)
        )
        unshown = [
            pb.Unshown(name=names.study_name(study), reason="its status cannot be read")
            for study in unreadable
        ]
        size = sum(message.ByteSize() for message in page.messages)
        return pb.ListWorkersResponse(
            workers=page.messages,
            next_page_token=page.token,
            shares=pages.fitting(map(convert.share, shares), beside=size),
            unshown=[*page.unshown, *unshown],
        )
