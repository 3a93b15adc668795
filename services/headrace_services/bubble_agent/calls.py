"""Calls to an agent from a command. Errors have messages for people."""

from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc

from headrace.error_status import from_rpc_error
from headrace.errors import HeadraceError, UnreachableError
from headrace.target import proxy_options
from headrace.v1 import bubble_pb2 as pb
from headrace.v1 import bubble_pb2_grpc
from headrace_services.bubble_agent.process import socket_of
from headrace_torch.bubble_shm import folder as default_folder

TIMEOUT_S: Final = 5.0
LARGEST: Final = 64 * 1024 * 1024


class Caller:
    """A channel to one agent: that of a folder, or one that listens on TCP. Use it as a context manager."""

    def __init__(self, folder: Path | None, address: str | None) -> None:
        """Connects with the first call."""
        self._folder = (folder or default_folder()).expanduser().absolute()
        self._address = address
        target = address or f"unix:{socket_of(self._folder)}"
        options = (*proxy_options(target), ("grpc.max_receive_message_length", LARGEST))
        self._channel = grpc.insecure_channel(target, options=options)
        self._stub: Any = bubble_pb2_grpc.BubbleServiceStub(self._channel)

    def __enter__(self) -> Self:
        """Returns the caller."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the channel."""
        self._channel.close()

    def jobs(self, job: str) -> pb.ListBubbleJobsResponse:
        """Returns the agent's current state. Raises HeadraceError."""
        found: pb.ListBubbleJobsResponse = self._call("ListBubbleJobs", pb.ListBubbleJobsRequest(job=job))
        return found

    def timeline(self, job: str, seconds: float) -> pb.GetBubbleTimelineResponse:
        """Returns the last seconds of a job. Raises HeadraceError."""
        request = pb.GetBubbleTimelineRequest(job=job, seconds=seconds)
        found: pb.GetBubbleTimelineResponse = self._call("GetBubbleTimeline", request)
        return found

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            known = from_rpc_error(error)
            if isinstance(known, UnreachableError):
                where = f"at {self._address}" if self._address else f"in {self._folder}"
                raise HeadraceError(
                    f"no bubble agent answers {where}.",
                    remedy="Start one with `headrace bubble-agent`, or name its folder with --folder.",
                ) from None
            raise known from None
