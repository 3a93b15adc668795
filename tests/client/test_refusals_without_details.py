"""What a status code means that gRPC answers by itself, without the details of a server of ours."""

import grpc
import pytest

from headrace.error_status import from_rpc_error
from headrace.errors import HeadraceError, InternalError, TooLargeError


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("SERVER: Received message larger than max (9 vs. 8)", TooLargeError),
        ("Concurrent RPC limit exceeded!", InternalError),  # a planner that has too many calls at once
    ],
)
def test_only_a_message_that_is_too_large_is_called_so(said: str, kind: type[HeadraceError]) -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), grpc.aio.Metadata(), details=said
    )
    assert type(from_rpc_error(error)) is kind
