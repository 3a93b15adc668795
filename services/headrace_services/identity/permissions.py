"""The one table of what each role may call. A method that is not in it is refused to everybody.

A test compares it with the descriptors of every service. docs/reference/permissions.md is written from it.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.identity.roles import Role

_PEOPLE: Final = frozenset({Role.VIEWER, Role.EDITOR, Role.ADMIN})


class Permission(Enum):
    """Who may call a method."""

    OPEN = "open"
    """Everybody, without a token: what load balancers ask."""
    KNOWN = "known"
    """Whoever has a token."""
    LOOK = "look"
    """People, to look."""
    CHANGE = "change"
    """People who may change things. They run programs on the workers by that."""
    GOVERN = "govern"
    """People who say who may call."""
    WORK = "work"
    """Workers."""
    CERTIFIED = "certified"
    """Nobody by a token: workers, by their certificates, where they have them. A token does not say which worker calls,
    so not what it was given."""
    SOCKET = "socket"
    """Nobody by a token. It is served on a Unix socket of one machine, which its user alone may open. A trial's process
    also names its lease."""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that it lets in."""
        return _ROLES[self]


_ROLES: Final[Mapping[Permission, frozenset[Role]]] = {
    Permission.OPEN: frozenset(Role),
    Permission.KNOWN: frozenset(Role),
    Permission.LOOK: _PEOPLE,
    Permission.CHANGE: _PEOPLE - {Role.VIEWER},
    Permission.GOVERN: frozenset({Role.ADMIN}),
    Permission.WORK: frozenset({Role.WORKER}),
    Permission.CERTIFIED: frozenset(),
    Permission.SOCKET: frozenset(),
}


def _methods(service: str, permission: Permission, names: str) -> dict[str, Permission]:
    return {f"/{service}/{name}": permission for name in names.split()}


PERMISSIONS: Final[Mapping[str, Permission]] = {
    **_methods(
        "headrace.v1.StudyService",
        Permission.LOOK,
        "GetStudy ListStudies GetTrial ListTrials WatchStudy ExplainTrial PreviewStudy ListReports ListWorkers "
        "FindRoom MeasureImportance ReadLog GetServerInfo GetUpkeep",
    ),
    **_methods(
        "headrace.v1.StudyService",
        Permission.CHANGE,
        "CreateStudy PauseStudy ResumeStudy StopStudy DeleteStudy AddTrials RetryTrials ExtendStudy PauseTrial "
        "ResumeTrial StopTrial SuggestTrial ReportTrial RenewTrial CompleteTrial ReleaseTrial",
    ),
    **_methods(
        "headrace.v1.StudyService",
        Permission.GOVERN,
        "DrainWorker UndrainWorker CordonDevices UncordonDevices CleanUp",
    ),
    **_methods("headrace.v1.IdentityService", Permission.KNOWN, "WhoAmI"),
    **_methods("headrace.v1.IdentityService", Permission.GOVERN, "CreateToken ListTokens RevokeToken"),
    **_methods("headrace.v1.CodeService", Permission.CHANGE, "HasCode PutCode"),
    **_methods("headrace.v1.CodeService", Permission.CERTIFIED, "GetCode"),
    **_methods("headrace.v1.ProjectService", Permission.LOOK, "ListProjects"),
    **_methods("headrace.v1.ProjectService", Permission.GOVERN, "CreateProject SetProject"),
    **_methods("headrace.v1.JoinService", Permission.OPEN, "Join"),
    **_methods("headrace.v1.JoinService", Permission.WORK, "Renew"),
    **_methods(
        "headrace.v1.JoinService",
        Permission.GOVERN,
        "CreateJoinToken ListJoinTokens RevokeJoinToken RevokeWorker",
    ),
    **_methods("headrace.v1.WorkerService", Permission.WORK, "Session JudgeFolders"),
    **_methods("headrace.v1.PlannerService", Permission.LOOK, "Plan Simulate Explain"),
    **_methods(
        "headrace.v1.BubbleService", Permission.SOCKET, "ListBubbleJobs GetBubbleTimeline ShareProgress"
    ),
    **_methods(
        "headrace.v1.TrialRuntimeService",
        Permission.SOCKET,
        "Attach Loaded Restored Report Finish AttachBundle Turn FinishBundle",
    ),
    **_methods("grpc.health.v1.Health", Permission.OPEN, "Check Watch"),
    **_methods("grpc.reflection.v1alpha.ServerReflection", Permission.KNOWN, "ServerReflectionInfo"),
}
"""Every method of every service that Headrace serves, by the path of its calls."""


def may_give(role: Role, project: str, *, to_role: Role, to_project: str) -> bool:
    """Whether somebody may make, see and revoke a token. Admins may, in their project. The default project is the
    installation's own, so its admins may give all. Workers run the trials of every project: only they give those."""
    if role is not Role.ADMIN:
        return False
    return project == DEFAULT_PROJECT or (to_project == project and to_role is not Role.WORKER)
