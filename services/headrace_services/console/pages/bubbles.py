"""The pipelines of the console's machine and what trials do in their idle windows, from the machine's bubble agent.

The agent shows all jobs of its machine, whatever their project. With a scheduler that asks for tokens, only admins
see this page.
"""

from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToDict
from starlette.requests import Request

from headrace.client import AsyncClient
from headrace.client.identities import Role
from headrace.errors import PermissionDeniedError
from headrace.v1 import bubble_pb2 as pb
from headrace.v1 import bubble_pb2_grpc
from headrace_services.console.rendering import Content
from headrace_torch.bubble_shm import folder

SOCKET: Final = "agent.sock"
TIMEOUT_S: Final = 3.0
LARGEST: Final = 64 * 1024 * 1024


async def bubbles(request: Request, client: AsyncClient) -> Content:  # noqa: ARG001 - every page takes the request
    """The jobs on this machine."""
    who = await client.who_am_i()
    if who.token is not None and who.role is not Role.ADMIN:
        raise PermissionDeniedError("only admins see the pipelines of the console's machine")
    place = folder()
    found = await jobs(place)
    return Content(
        template="bubbles.html",
        title="Bubbles",
        data={"folder": str(place), "jobs": plain(found) if found else None},
        more={"answer": found, "folder": place},
    )


async def jobs(place: Path) -> pb.ListBubbleJobsResponse | None:
    """What the agent of a folder answers; None if there is no agent."""
    options = (("grpc.max_receive_message_length", LARGEST),)
    async with grpc.aio.insecure_channel(f"unix:{place / SOCKET}", options) as channel:
        stub: Any = bubble_pb2_grpc.BubbleServiceStub(channel)
        try:
            found: pb.ListBubbleJobsResponse = await stub.ListBubbleJobs(
                pb.ListBubbleJobsRequest(), timeout=TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return None
    return found


def plain(answer: pb.ListBubbleJobsResponse) -> list[dict[str, Any]]:
    """The jobs as JSON, with the keys of `headrace bubbles --json`."""
    found = MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    some: list[dict[str, Any]] = found["jobs"]
    return some
