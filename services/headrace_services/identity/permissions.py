"""The one table of what each role may call. A method that is not in it is denied to everybody.

A test compares it with the descriptors of every service. docs/reference/permissions.md is generated from it, and a
test makes every call on that page (`callers.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.identity.roles import Role

_PEOPLE: Final = frozenset({Role.VIEWER, Role.EDITOR, Role.ADMIN})


class Permission(Enum):
    """Who may call a method."""

    OPEN = "open"
    """Everybody, without a token: the requests of load balancers."""
    KNOWN = "known"
    """Whoever has a token."""
    LOOK = "look"
    """People, for reading."""
    CHANGE = "change"
    """People who may change things. That lets them run programs on the workers."""
    GOVERN = "govern"
    """People who decide who may call."""
    OPERATE = "operate"
    """People who decide what concerns every project: admins of the default project."""
    WORK = "work"
    """Workers."""
    CERTIFIED = "certified"
    """Nobody with a token: only workers, with their certificates, if they have them. A token does not identify the
    worker, and so not what that worker was assigned."""
    SOCKET = "socket"
    """Nobody with a token. It is served on a Unix socket of one machine, which only its user may open. A trial's
    process also names its lease."""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that it admits."""
        return _ROLES[self]


_ROLES: Final[Mapping[Permission, frozenset[Role]]] = {
    Permission.OPEN: frozenset(Role),
    Permission.KNOWN: frozenset(Role),
    Permission.LOOK: _PEOPLE,
    Permission.CHANGE: _PEOPLE - {Role.VIEWER},
    Permission.GOVERN: frozenset({Role.ADMIN}),
    Permission.OPERATE: frozenset({Role.ADMIN}),
    Permission.WORK: frozenset({Role.WORKER}),
    Permission.CERTIFIED: frozenset(),
    Permission.SOCKET: frozenset(),
}


class Reach(Enum):
    """What a call reaches in projects other than the caller's."""

    SHARED = "shared"
    """It concerns no project, or all projects."""
    NAMED = "named"
    """It names one thing. A thing of another project is not found."""
    OWN = "own"
    """It shows or makes only things of the caller's project."""
    OVERSEEN = "overseen"
    """Like OWN. For an admin of the default project it reaches every project."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of the table."""

    permission: Permission
    reach: Reach


def _methods(service: str, permission: Permission, reach: Reach, names: str) -> dict[str, Rule]:
    return {f"/{service}/{name}": Rule(permission, reach) for name in names.split()}


_STUDY: Final = "headrace.v1.StudyService"
_IDENTITY: Final = "headrace.v1.IdentityService"
_CODE: Final = "headrace.v1.CodeService"
_PROJECT: Final = "headrace.v1.ProjectService"
_JOIN: Final = "headrace.v1.JoinService"
_BUBBLE: Final = "headrace.v1.BubbleService"

PERMISSIONS: Final[Mapping[str, Rule]] = {
    **_methods(
        _STUDY,
        Permission.LOOK,
        Reach.NAMED,
        "GetStudy GetTrial ListTrials WatchStudy ExplainTrial ListReports ReadCurves MeasureImportance FindRoom "
        "ReadLog",
    ),
    **_methods(_STUDY, Permission.LOOK, Reach.OWN, "ListStudies ListWorkers"),
    **_methods(_STUDY, Permission.LOOK, Reach.OVERSEEN, "GetUpkeep"),
    **_methods(_STUDY, Permission.LOOK, Reach.SHARED, "PreviewStudy GetServerInfo"),
    **_methods(_STUDY, Permission.CHANGE, Reach.OWN, "CreateStudy"),
    **_methods(
        _STUDY,
        Permission.CHANGE,
        Reach.NAMED,
        "PauseStudy ResumeStudy StopStudy DeleteStudy AddTrials RetryTrials ExtendStudy PauseTrial ResumeTrial "
        "StopTrial Annotate SuggestTrial ReportTrial RenewTrial CompleteTrial ReleaseTrial ForgetCheckpoints",
    ),
    **_methods(
        _STUDY,
        Permission.OPERATE,
        Reach.SHARED,
        "DrainWorker UndrainWorker CordonDevices UncordonDevices CleanUp",
    ),
    **_methods(_IDENTITY, Permission.KNOWN, Reach.SHARED, "WhoAmI"),
    **_methods(_IDENTITY, Permission.GOVERN, Reach.OVERSEEN, "CreateToken ListTokens RevokeToken"),
    **_methods(_CODE, Permission.CHANGE, Reach.OWN, "HasCode PutCode"),
    **_methods(_CODE, Permission.CERTIFIED, Reach.SHARED, "GetCode"),
    **_methods(_PROJECT, Permission.LOOK, Reach.OVERSEEN, "ListProjects"),
    **_methods(_PROJECT, Permission.OPERATE, Reach.SHARED, "CreateProject SetProject"),
    **_methods(_JOIN, Permission.OPEN, Reach.SHARED, "Join"),
    **_methods(_JOIN, Permission.WORK, Reach.SHARED, "Renew"),
    **_methods(
        _JOIN, Permission.OPERATE, Reach.SHARED, "CreateJoinToken ListJoinTokens RevokeJoinToken RevokeWorker"
    ),
    **_methods("headrace.v1.WorkerService", Permission.WORK, Reach.SHARED, "Session JudgeFolders"),
    **_methods("headrace.v1.PlannerService", Permission.LOOK, Reach.SHARED, "Plan Simulate Explain"),
    **_methods(
        _BUBBLE,
        Permission.SOCKET,
        Reach.SHARED,
        "ListBubbleJobs GetBubbleTimeline",
    ),
    **_methods(_BUBBLE, Permission.WORK, Reach.SHARED, "ShareProgress"),
    **_methods(
        "headrace.v1.TrialRuntimeService",
        Permission.SOCKET,
        Reach.NAMED,
        "Attach Loaded Restored Report Finish AttachBundle Turn FinishBundle",
    ),
    **_methods("grpc.health.v1.Health", Permission.OPEN, Reach.SHARED, "Check Watch"),
    **_methods(
        "grpc.reflection.v1alpha.ServerReflection", Permission.KNOWN, Reach.SHARED, "ServerReflectionInfo"
    ),
}
"""Every method of every service that Headrace serves, by the path of its calls."""


def may_call(permission: Permission, role: Role, project: str) -> bool:
    """Whether somebody with a role in a project may call the methods of a permission."""
    everywhere = permission is not Permission.OPERATE or project == DEFAULT_PROJECT
    return everywhere and role in permission.roles


def may_give(role: Role, project: str, *, to_role: Role, to_project: str) -> bool:
    """Whether somebody may make, see and revoke a token. Admins may, in their project. The default project is the
    installation's own, so its admins may manage all tokens. Workers run the trials of every project: only those
    admins issue their tokens."""
    if role is not Role.ADMIN:
        return False
    return project == DEFAULT_PROJECT or (to_project == project and to_role is not Role.WORKER)
