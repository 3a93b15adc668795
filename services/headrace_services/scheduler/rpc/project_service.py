"""ProjectService: creates projects, lists them and sets their limits."""
# ruff: noqa: ARG002  (every method takes the call's context)

from typing import Any

import grpc
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import (
    InvalidFieldError,
    ProjectExistsError,
    ProjectNotFoundError,
)
from headrace.spec import names as rules
from headrace.spec.resources import WHOLE
from headrace.v1 import project_pb2 as pb
from headrace.v1.project_pb2_grpc import ProjectServiceServicer
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.rpc import names, pages
from headrace_services.scheduler.rpc.caller import caller, governs
from headrace_services.scheduler.rpc.calls import identity_of, once
from headrace_services.scheduler.store import quotas
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.quotas import ProjectView

Context = grpc.aio.ServicerContext[Any, Any]


class ProjectServicer(ProjectServiceServicer):
    """Calls about projects."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def CreateProject(
        self, request: pb.CreateProjectRequest, context: Context
    ) -> pb.CreateProjectResponse:
        """Create a project with its limits."""
        problem = rules.PROJECT.problem(request.project_id, "project_id")
        if problem is not None:
            raise InvalidFieldError([problem.violation()])
        slots = request.slots if request.HasField("slots") else None
        studies = request.studies if request.HasField("studies") else None
        code_mib = request.code_mib if request.HasField("code_mib") else None

        async def create(conn: AsyncConnection) -> pb.CreateProjectResponse:
            if not await quotas.make(conn, request.project_id):
                raise ProjectExistsError(f"a project '{request.project_id}' exists already")
            await quotas.limit(conn, request.project_id, slots=slots, studies=studies, code_mib=code_mib)
            return pb.CreateProjectResponse(project=await _project(conn, request.project_id))

        response = await once(self._hub.engine, identity_of(request, request.request_id), create)
        return pb.CreateProjectResponse.FromString(response)

    async def ListProjects(
        self, request: pb.ListProjectsRequest, context: Context
    ) -> pb.ListProjectsResponse:
        """The projects by name; only the caller's own, unless it may set limits of all."""
        window = pages.window(request, (str,))
        after = str(window.after[0]) if window.after else ""
        only = None if governs() else caller().project
        async with transaction(self._hub.engine) as conn:
            found = await quotas.projects(conn, after=after, only=only, limit=window.limit)
        page = window.fill(
            found, found, _message, lambda one: (one.name,), lambda one: names.project_name(one.name)
        )
        return pb.ListProjectsResponse(projects=page.messages, next_page_token=page.token)

    async def SetProject(self, request: pb.SetProjectRequest, context: Context) -> pb.SetProjectResponse:
        """Change limits; studies that a limit held off check again."""
        name = names.parse_project(request.name)
        waiting: list[int] = []

        async def change(conn: AsyncConnection) -> pb.SetProjectResponse:
            before = await quotas.project(conn, name, lock=True)
            if before is None:
                raise ProjectNotFoundError(f"there is no project '{name}'")
            await quotas.limit(
                conn,
                name,
                slots=_most(request.slots) if request.HasField("slots") else before.slots,
                studies=_most(request.studies) if request.HasField("studies") else before.studies,
                code_mib=_most(request.code_mib) if request.HasField("code_mib") else before.code_mib,
            )
            waiting[:] = await quotas.kept_off(conn, name)
            return pb.SetProjectResponse(project=await _project(conn, name))

        response = await once(self._hub.engine, identity_of(request, request.request_id), change)
        for study_id in waiting:
            self._hub.kick(study_id)
        return pb.SetProjectResponse.FromString(response)


def _most(limit: pb.ProjectLimit) -> int | None:
    return limit.most if limit.HasField("most") else None


async def _project(conn: AsyncConnection, name: str) -> pb.Project:
    found = await quotas.project(conn, name)
    assert found is not None, "no project is deleted"
    return _message(found)


def _message(view: ProjectView) -> pb.Project:
    return pb.Project(
        name=names.project_name(view.name),
        slots=view.slots,
        studies=view.studies,
        slots_held=view.held_milli / WHOLE,
        studies_unended=view.unended,
        code_mib=view.code_mib,
        code_mib_held=view.code_bytes / (1 << 20),
    )
