"""Calls on studies: create, read, pause, resume, stop, delete, preview, watch, measure."""
# ruff: noqa: ARG002  (every method takes the call's context)

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import StudyNotFoundError
from headrace.spec import from_proto
from headrace.v1 import study_pb2 as pb
from headrace_services.identity.admitted import who_pays
from headrace_services.scheduler.core import placement as places
from headrace_services.scheduler.core.inputs import (
    Command,
    ExtendStudy,
    Outcome,
    PauseStudy,
    ResumeStudy,
    StopStudy,
)
from headrace_services.scheduler.core.placement.wants import described
from headrace_services.scheduler.core.records import Study
from headrace_services.scheduler.engine.submissions import Shown
from headrace_services.scheduler.rpc import convert, names, pages
from headrace_services.scheduler.rpc.caller import caller
from headrace_services.scheduler.rpc.calls import (
    Calls,
    Context,
    find_brief,
    find_ended,
    find_study,
    identity_of,
    new_study,
    once,
    whole_study,
)
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.rpc.new_studies import (
    create_studies,
    load_own,
    refuse_what_stays,
    wanted_studies,
)
from headrace_services.scheduler.rpc.spec_faults import refuse_unknown
from headrace_services.scheduler.rpc.watching import watch
from headrace_services.scheduler.samplers import importance
from headrace_services.scheduler.samplers.history import Result
from headrace_services.scheduler.samplers.spread import pilot_configurations
from headrace_services.scheduler.store import (
    cluster,
    placement,
    proposals,
    quotas,
    removal,
    studies,
)
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.defects import each, within
from headrace_services.scheduler.store.query import study_keys
from headrace_services.scheduler.store.requests import Request


class StudyCalls(Calls):
    """Calls about studies."""

    async def CreateStudy(self, request: pb.CreateStudyRequest, context: Context) -> pb.CreateStudyResponse:
        """Validate the spec and create the study, with its gate and the study that follows it, if any."""
        wanted = await wanted_studies(request.study_id, request.spec)
        created: list[Study] = []

        async def create(conn: AsyncConnection) -> pb.CreateStudyResponse:
            made = await create_studies(conn, caller().project, wanted)
            created[:] = made.all
            return pb.CreateStudyResponse(study=await new_study(conn, made.first.id))

        response = await once(self.hub.engine, identity_of(request, request.request_id), create)
        for study in created:
            self.hub.kick(study.id)
        return pb.CreateStudyResponse.FromString(response)

    async def GetStudy(self, request: pb.GetStudyRequest, context: Context) -> pb.GetStudyResponse:
        """One study with its status."""
        study_id = names.parse_study(request.name)
        async with transaction(self.hub.engine) as conn:
            study = await find_brief(conn, study_id)
        return pb.GetStudyResponse(study=await whole_study(self.hub.engine, self.analysis, study.id))

    async def ListStudies(self, request: pb.ListStudiesRequest, context: Context) -> pb.ListStudiesResponse:
        """The studies of the caller's project, newest first, a page at a time."""
        which = study_keys.filtered(request.filter, datetime.now(UTC))
        window = pages.window(request, (int,))
        before = window.after[0] if window.after else None
        async with transaction(self.hub.engine) as conn:
            keys = await studies.newest(
                conn,
                caller().project,
                before_id=None if before is None else int(before),
                limit=window.limit,
                which=which if request.filter else None,
            )
            first = keys[: min(window.size, within([key.size for key in keys], studies.MOST_SPEC_BYTES))]
            found = await each(conn, first, partial(studies.with_figures, conn))
        page = window.fill(
            keys,
            found,
            lambda item: convert.study(*item),
            lambda key: (key.id,),
            lambda key: names.study_name(key.name),
        )
        return pb.ListStudiesResponse(studies=page.messages, next_page_token=page.token, unshown=page.unshown)

    async def PauseStudy(self, request: pb.PauseStudyRequest, context: Context) -> pb.PauseStudyResponse:
        """Let running trials continue to their next rung, where they pause; start none."""
        change = identity_of(request, request.request_id)
        return pb.PauseStudyResponse(study=await self._move_study(change, request.name, PauseStudy()))

    async def ResumeStudy(self, request: pb.ResumeStudyRequest, context: Context) -> pb.ResumeStudyResponse:
        """Undo PauseStudy."""
        change = identity_of(request, request.request_id)
        return pb.ResumeStudyResponse(study=await self._move_study(change, request.name, ResumeStudy()))

    async def StopStudy(self, request: pb.StopStudyRequest, context: Context) -> pb.StopStudyResponse:
        """Cancel every live trial and end the study. A study that has already ended stays as it is."""
        change = identity_of(request, request.request_id)
        command = StopStudy(reason=request.reason)
        return pb.StopStudyResponse(study=await self._move_study(change, request.name, command))

    async def ExtendStudy(self, request: pb.ExtendStudyRequest, context: Context) -> pb.ExtendStudyResponse:
        """Let a study, which may have ended, continue with more configurations or a larger full budget."""
        checks = Checks()
        if bool(request.trials) == bool(request.steps):
            given = "both trials and steps" if request.trials else "neither trials nor steps"
            checks.note("trials", given, "must be given without steps, or steps without trials", "Give one.")
        checks.done()
        change = identity_of(request, request.request_id)
        command = ExtendStudy(trials=request.trials, steps=request.steps or None)
        return pb.ExtendStudyResponse(study=await self._move_study(change, request.name, command))

    async def _move_study(self, request: Request | None, name: str, command: Command) -> pb.Study:
        """Carry out a command on a study. Returns the study as it is now.

        For a repeat only the study's own row is stored, as the command left it. It is returned if the study was
        deleted since.
        """

        def answer(outcome: Outcome, shown: Shown) -> pb.Study:  # noqa: ARG001  # called with both, as every Answer is
            return convert.bare_study(shown.study, "it was deleted since")

        stored, study_id = await self.order(request, names.parse_study(name), command, answer)
        try:
            return await whole_study(self.hub.engine, self.analysis, study_id)
        except StudyNotFoundError:
            return pb.Study.FromString(stored)

    async def DeleteStudy(self, request: pb.DeleteStudyRequest, context: Context) -> pb.DeleteStudyResponse:
        """Remove an ended study. Its name is free at once; its rows and files are deleted soon, a little at a
        time."""
        study_id = names.parse_study(request.name)

        async def delete(conn: AsyncConnection) -> pb.DeleteStudyResponse:
            study = await find_ended(conn, study_id)
            await removal.mark_deleted(conn, study.id)
            return pb.DeleteStudyResponse()

        response = await once(self.hub.engine, identity_of(request, request.request_id), delete)
        self.janitor.wake()
        return pb.DeleteStudyResponse.FromString(response)

    async def WatchStudy(
        self, request: pb.WatchStudyRequest, context: Context
    ) -> AsyncIterator[pb.WatchStudyResponse]:
        """Follow a study until it has ended."""
        study_id = names.parse_study(request.name)
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, study_id)
        async with aclosing(watch(self.hub, self.snapshots, study, request.after_cursor)) as updates:
            async for update in updates:
                yield update

    async def PreviewStudy(
        self, request: pb.PreviewStudyRequest, context: Context
    ) -> pb.PreviewStudyResponse:
        """Show what a spec would do before any time is spent on it."""
        refuse_unknown(request.spec)
        spec = from_proto(request.spec)
        refuse_what_stays(spec)
        await load_own(spec)
        if spec.surrogate is not None and spec.surrogate.pilot is not None:
            pilot_configurations(spec)  # refused here, as when the study is created
        slots = request.slots
        if not slots:
            async with transaction(self.hub.engine) as conn:
                slots = max(1, await cluster.connected_slots(conn))
                limits = await quotas.project(conn, caller().project)
            if limits is not None and limits.slots is not None:
                slots = min(slots, max(1, limits.slots))
        found = await self.analysis.preview(
            spec,
            slots,
            request.seconds_per_step or None,
            request.target_seconds_per_step or None,
            caller=who_pays(caller().peer),
        )
        return convert.preview(found)

    async def FindRoom(self, request: pb.FindRoomRequest, context: Context) -> pb.FindRoomResponse:
        """List the sizes of a study's trials that fit on no connected worker, by the rules of placement."""
        study_id = names.parse_study(request.study, field="study")
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, study_id)
            sizes = [places.Request.of(size, study.standing.avoided) for size in study.spec.resources.each]
            lacking = [described(size) for size in sizes if not await placement.able_workers(conn, size)]
        return pb.FindRoomResponse(lacking=lacking, sizes=len(sizes))

    async def MeasureImportance(
        self, request: pb.MeasureImportanceRequest, context: Context
    ) -> pb.MeasureImportanceResponse:
        """Measure how much each parameter matters, from the results at one level."""
        study_id = names.parse_study(request.study, field="study")
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, study_id)
            spec, upto = study.spec, study.cursor
            counts = (await proposals.levels_since(conn, study.id, 0, upto)).items()
            reason = importance.why_none(spec, counts)
            level = importance.compared_level(spec, counts)
            if reason or level is None:
                none = importance.none(spec, reason)
                return pb.MeasureImportanceResponse(importances=convert.importances(none))
            measured = await proposals.results_since(
                conn, study.id, level, 0, upto, budgets=spec.budgets, most=importance.MOST
            )
        results = [Result.of(spec, one.params, one.metrics) for one in measured]
        found = await self.analysis.importances(spec, level, results, caller=who_pays(caller().peer))
        return pb.MeasureImportanceResponse(importances=convert.importances(found))
