"""The connection to the worker daemon: unary gRPC over its Unix socket.

The daemon survives a lost scheduler, but a trial does not survive its daemon (the kernel kills it). So calls to
an unreachable daemon are retried for seconds, not forever. A call that runs into its deadline is waiting for a
decision, and is repeated unchanged: its sequence shows that it is the same.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

import grpc
import tenacity
from google.protobuf.message import Message

from headrace.trial import ends
from headrace.trial.runtime import DaemonGone, TrialRuntimeError
from headrace.v1 import runtime_pb2_grpc

# An attach may fetch a checkpoint from far away; a milestone may wait for a scheduler that is being restarted.
DEADLINE_S = 600.0
_UNREACHABLE_FOR_S = 15.0
_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer", bound=Message)


class UnknownCallError(TrialRuntimeError):
    """The worker's release does not have the call."""


class Line:
    """One connection, and the handling of its calls."""

    def __init__(self, address: str) -> None:
        self._address = address
        # A daemon is never behind a proxy, whatever the environment says.
        self._channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self.stub = runtime_pb2_grpc.TrialRuntimeServiceStub(self._channel)
        self.gone = False
        """Whether the daemon was given up."""

    def call(
        self,
        method: Callable[..., _Answer],
        request: _Request,
        *,
        deadline_s: float | None = None,
    ) -> _Answer:
        """Calls until there is an answer. Raises `TrialRuntimeError` for a rejection, and `DaemonGone`. If the
        worker does not know the call, the error is an `UnknownCallError`.
        """
        while True:
            retrying = tenacity.Retrying(
                retry=tenacity.retry_if_exception(lambda error: _code(error) is grpc.StatusCode.UNAVAILABLE),
                stop=tenacity.stop_after_delay(_UNREACHABLE_FOR_S),
                wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
                reraise=True,
            )
            try:
                return retrying(method, request, timeout=deadline_s or DEADLINE_S)
            except grpc.RpcError as error:
                if _code(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue  # the daemon is alive, and still waiting for the decision
                raise self._refusal(error) from error

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _refusal(self, error: grpc.RpcError) -> TrialRuntimeError | DaemonGone:
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        if _code(error) is grpc.StatusCode.UNAVAILABLE:
            gone = DaemonGone(f"the worker at {self._address} no longer answers ({details})")
            print(f"headrace: {gone}", file=sys.stderr)
            self.gone = True
            return gone
        if _code(error) is grpc.StatusCode.UNIMPLEMENTED:
            return UnknownCallError(f"the worker at {self._address} is older than this call: {details}")
        refusal = TrialRuntimeError(f"the worker at {self._address} refuses the trial's call: {details}")
        ends.speak(error=f"TrialRuntimeError: {refusal}", traceback="")
        return refusal


def _code(error: BaseException) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None
