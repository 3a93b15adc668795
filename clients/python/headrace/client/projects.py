"""Projects: their limits, their current use, and the operations as flows."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from headrace.client.arguments import whole_number
from headrace.client.flow import Flow, rpc
from headrace.client.flows import PAGE_SIZE, request_id
from headrace.v1 import project_pb2 as pb

_PREFIX: Final = "projects/"


class Unchanged(Enum):
    """The value for a limit that does not change."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectInfo:
    """A project, its limits, and what its studies use now."""

    name: str
    slots: int | None
    """The most slots that its studies may hold at once; None: no limit."""
    studies: int | None
    """The most studies that may be active at once, that is, have not ended; None: no limit."""
    code_mib: int | None
    """The largest total size of its code archives, in MiB; None: 10240."""
    slots_held: float
    studies_unended: int
    code_mib_held: float


def projects(_: object) -> Flow[list[ProjectInfo]]:
    """The projects by name; only the caller's own, unless the caller may set limits of all."""
    found: list[ProjectInfo] = []
    request = pb.ListProjectsRequest(page_size=PAGE_SIZE)
    while True:
        page = yield from rpc(pb.ListProjectsResponse, request)
        found += map(_info, page.projects)
        if not page.next_page_token:
            return found
        request = pb.ListProjectsRequest(page_size=PAGE_SIZE, page_token=page.next_page_token)


def create_project(
    _: object,
    name: str,
    *,
    slots: int | None = None,
    studies: int | None = None,
    code_mib: int | None = None,
) -> Flow[ProjectInfo]:
    """Creates a project, with limits on the slots that its studies hold at once and on the studies that have not
    ended. `code_mib` limits the total size of its code archives; the default is 10 GiB.

    For admins of the project `default`. Raises `ProjectExistsError`."""
    request = pb.CreateProjectRequest(
        request_id=request_id(),
        project_id=name,
        slots=_most("slots", slots),
        studies=_most("studies", studies),
        code_mib=_most("code_mib", code_mib),
    )
    response = yield from rpc(pb.CreateProjectResponse, request)
    return _info(response.project)


def set_project(
    _: object,
    name: str,
    *,
    slots: int | Unchanged | None = UNCHANGED,
    studies: int | Unchanged | None = UNCHANGED,
    code_mib: int | Unchanged | None = UNCHANGED,
) -> Flow[ProjectInfo]:
    """Sets limits of a project. None removes a limit (for code, it restores the default of 10 GiB), and limits
    that are not given stay. Running trials are not stopped.

    For admins of the project `default`. Raises `ProjectNotFoundError`."""
    request = pb.SetProjectRequest(
        request_id=request_id(),
        name=f"{_PREFIX}{name}",
        slots=_limit("slots", slots),
        studies=_limit("studies", studies),
        code_mib=_limit("code_mib", code_mib),
    )
    response = yield from rpc(pb.SetProjectResponse, request)
    return _info(response.project)


def _limit(field: str, most: int | Unchanged | None) -> pb.ProjectLimit | None:
    return None if isinstance(most, Unchanged) else pb.ProjectLimit(most=_most(field, most))


def _most(field: str, most: int | None) -> int | None:
    remedy = f"Give the most {field} that the project may have, or None for no limit."
    return None if most is None else whole_number(field, most, remedy)


def _info(proto: pb.Project) -> ProjectInfo:
    return ProjectInfo(
        name=proto.name.removeprefix(_PREFIX),
        slots=proto.slots if proto.HasField("slots") else None,
        studies=proto.studies if proto.HasField("studies") else None,
        code_mib=proto.code_mib if proto.HasField("code_mib") else None,
        slots_held=proto.slots_held,
        studies_unended=proto.studies_unended,
        code_mib_held=proto.code_mib_held,
    )
