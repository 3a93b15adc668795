"""What each kind of caller gets from each method: the table of docs/reference/permissions.md.

It follows from the rules (`permissions.py`) and from where each service is served.
tests/identity/test_every_call.py makes all these calls on real servers, and fails if one gets something else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace_services.identity.permissions import PERMISSIONS, Permission, Reach, may_call
from headrace_services.identity.roles import Role


class Place(Enum):
    """Where a method is served."""

    USERS = "users"
    """The listeners that require tokens: a scheduler's for users, and a planner's."""
    WORKERS = "workers"
    """The listeners that require a worker's certificate: a scheduler's for workers, and a bubble agent's port."""
    SOCKET = "socket"
    """A Unix socket on one machine."""


class Project(Enum):
    """The project of a caller's token, relative to the project that the call concerns."""

    THIS = "this"
    OTHER = "other"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A kind of caller.

    Attributes:
        heading: its column's heading.
        role: its token's role; None if it has no valid token.
        place: the listener that it calls.
    """

    heading: str
    role: Role | None = None
    project: Project = Project.THIS
    place: Place = Place.USERS


CALLERS: Final = (
    Caller(heading="no token"),
    Caller(heading="wrong token"),
    Caller(heading="revoked token"),
    Caller(heading="viewer", role=Role.VIEWER),
    Caller(heading="editor", role=Role.EDITOR),
    Caller(heading="admin", role=Role.ADMIN),
    Caller(heading="admin of `default`", role=Role.ADMIN, project=Project.DEFAULT),
    Caller(heading="editor elsewhere", role=Role.EDITOR, project=Project.OTHER),
    Caller(heading="worker token", role=Role.WORKER, project=Project.DEFAULT),
    Caller(heading="certificate, users' port"),
    Caller(heading="certificate, workers' port", place=Place.WORKERS),
)


class Cell(Enum):
    """What a caller gets."""

    YES = "yes"
    OWN = "own"
    """It is served, but contains nothing of this project."""
    ASSIGNED = "assigned"
    """It is served for the trials that the caller runs, and it runs none of this project."""
    NOT_FOUND = "not found"
    NO = "no"
    UNSERVED = "–"
    """There is no such method at that listener."""


_OF_PEOPLE: Final = (Permission.LOOK, Permission.CHANGE, Permission.GOVERN, Permission.OPERATE)
_BOTH: Final = frozenset({Place.USERS, Place.WORKERS})
_PLACES: Final[Mapping[str, frozenset[Place]]] = {
    "CodeService": _BOTH,
    "JoinService": _BOTH,
    "Health": _BOTH,
    "ServerReflection": _BOTH,
    "WorkerService": frozenset({Place.WORKERS}),
    "BubbleService": frozenset({Place.WORKERS}),
}


def places(method: str) -> frozenset[Place]:
    """Where a closed service serves a method, given by its path."""
    if PERMISSIONS[method].permission is Permission.SOCKET:
        return frozenset({Place.SOCKET})
    service = method.split("/")[1].rpartition(".")[2]
    return _PLACES.get(service, frozenset({Place.USERS}))


def cell(method: str, caller: Caller) -> Cell:
    """What a caller gets from a method for things of this project."""
    permission, reach = PERMISSIONS[method].permission, PERMISSIONS[method].reach
    if caller.place not in places(method):
        return Cell.UNSERVED
    if permission is Permission.OPEN:
        return Cell.YES
    if caller.place is Place.WORKERS:
        if permission is Permission.CERTIFIED:
            return Cell.ASSIGNED
        return Cell.NO if permission in _OF_PEOPLE else Cell.YES
    if caller.role is None or not may_call(permission, caller.role, caller.project.value):
        return Cell.NO
    if permission is Permission.WORK and places(method) == _BOTH:
        return Cell.NO  # the method itself requires the certificate
    if caller.project is Project.THIS or reach is Reach.SHARED:
        return Cell.YES
    if caller.project is Project.DEFAULT and reach is Reach.OVERSEEN:
        return Cell.YES
    return Cell.NOT_FOUND if reach is Reach.NAMED else Cell.OWN
