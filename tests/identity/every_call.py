"""All calls on the permissions page that one caller can make, compared with the page."""

import grpc
from closed_site import ClosedSite
from google.protobuf.message import Message
from sample_calls import MARK, Samples
from served import METHODS

from headrace_services.identity.callers import Caller, Cell, Place, cell
from headrace_services.identity.permissions import PERMISSIONS, Permission, may_call

SERVERS = {"users": Place.USERS, "planner": Place.USERS, "workers": Place.WORKERS, "agent": Place.WORKERS}
_APART = {"PlannerService": "planner", "BubbleService": "agent"}
_AT_THE_PLANNER_TOO = {"Health", "ServerReflection"}


async def differences(site: ClosedSite, samples: Samples, caller: Caller) -> list[str]:
    """Where a caller gets a result that differs from the page, at any server."""
    wrong = []
    for path in METHODS:
        for server in (name for name, place in SERVERS.items() if place is caller.place):
            says = expected(path, caller, server)
            request = await samples.request(path, works=says in (Cell.YES, Cell.OWN))
            code, answer = await site.call(path, caller, server, request)
            if code is not status(path, caller, server):
                wrong.append(f"{path} at {server}: {code}, not {status(path, caller, server)}")
            elif says is Cell.OWN and shows_this_project(answer):
                wrong.append(f"{path} at {server}: it shows {answer}")
    return wrong


def expected(path: str, caller: Caller, server: str) -> Cell:
    """What the page says about a call at a server."""
    service = path.split("/")[1].rpartition(".")[2]
    planner_too = server == "planner" and service in _AT_THE_PLANNER_TOO
    alone = _APART.get(service, "users" if server in ("users", "planner") else "workers")
    return cell(path, caller) if planner_too or alone == server else Cell.UNSERVED


def status(path: str, caller: Caller, server: str) -> grpc.StatusCode:
    """The status of such a call."""
    permission = PERMISSIONS[path].permission
    if (
        caller.place is Place.USERS and permission is not Permission.OPEN
    ):  # the gate asks before anything else
        if caller.role is None:
            return grpc.StatusCode.UNAUTHENTICATED
        if not may_call(permission, caller.role, caller.project.value):
            return grpc.StatusCode.PERMISSION_DENIED
    return {
        Cell.YES: grpc.StatusCode.OK,
        Cell.OWN: grpc.StatusCode.OK,
        Cell.ASSIGNED: grpc.StatusCode.PERMISSION_DENIED,
        Cell.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
        Cell.NO: grpc.StatusCode.PERMISSION_DENIED,
        Cell.UNSERVED: grpc.StatusCode.UNIMPLEMENTED,
    }[expected(path, caller, server)]


def shows_this_project(answer: Message | None) -> bool:
    """Whether an answer contains anything of project `this`."""
    return answer is not None and (
        MARK.encode() in answer.SerializeToString() or getattr(answer, "present", False)
    )
