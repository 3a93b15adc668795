"""Calls about what is kept after a study's end: the age limits, what is due for deletion, and deleting it now."""
# ruff: noqa: ARG002  (every method takes the call's context)

from typing import Final

from headrace.ages import told
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.rpc import names
from headrace_services.scheduler.rpc.caller import caller, governs
from headrace_services.scheduler.rpc.calls import Calls, Context, find_ended
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.store import aging, leftovers
from headrace_services.scheduler.store.database import transaction

WHAT: Final = {
    "requests": "answers to requests that change something",
    "workers": "workers that no longer exist",
    "events": "events of the trials of ended studies",
    "reports": "metrics of ended studies between rungs",
    "leases": "attempts of ended studies: where each ran",
    "checkpoints": "checkpoints of ended studies, but for the best trials",
    "logs": "logs of ended studies on the workers",
    "code": "shipped code that no study needs",
    "studies": "ended studies as a whole",
    "tombstones": "the names of deleted studies, for workers that are away",
}


class UpkeepCalls(Calls):
    """Calls about upkeep."""

    async def GetUpkeep(self, request: pb.GetUpkeepRequest, context: Context) -> pb.GetUpkeepResponse:
        """The age limits, and what is due in the caller's project. A caller who governs all projects sees what is
        due in all of them, and the sizes of the tables."""
        ages, governor = self.janitor.ages, governs()
        project = None if governor else caller().project
        async with transaction(self.hub.engine) as conn:
            due = await leftovers.due_now(conn, ages, project)
            deleted = await leftovers.count_deleted(conn, project)
            sizes = await leftovers.table_sizes(conn) if governor else []
            restores = await leftovers.count_restores(conn) if governor else 0
        return pb.GetUpkeepResponse(
            kinds=[
                pb.KeptKind(kind=kind, age=told(getattr(ages, kind)), due=due[kind], what=WHAT[kind])
                for kind in due
            ],
            tables=[pb.TableSize(table=one.table, size_bytes=one.size_bytes, rows=one.rows) for one in sizes],
            deleted_studies=deleted,
            restores=restores,
        )

    async def CleanUp(self, request: pb.CleanUpRequest, context: Context) -> pb.CleanUpResponse:
        """Start the next round of the janitor now."""
        self.janitor.wake()
        return pb.CleanUpResponse()

    async def ForgetCheckpoints(
        self, request: pb.ForgetCheckpointsRequest, context: Context
    ) -> pb.ForgetCheckpointsResponse:
        """Forget checkpoints of an ended study, before their files are deleted. A call that arrives late, when the
        study has continued since, forgets nothing."""
        study_id = names.parse_study(request.study, field="study")
        checks = Checks()
        async with transaction(self.hub.engine) as conn:
            study = await find_ended(conn, study_id)
            if study.cursor != request.cursor:
                now = f"is not that of the newest event, which is {study.cursor}"
                checks.note("cursor", request.cursor, now, "Read the study again.")
            checks.done()
            trials = await aging.forget_deleted(conn, study.id, request.uris)
        return pb.ForgetCheckpointsResponse(trials=trials)
