"""Join tokens and revoked workers, for `headrace worker-token`."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration

from headrace.client.flow import Flow, rpc
from headrace.v1 import join_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """A token with which workers join, without its secret."""

    id: str
    worker: str
    """The only worker that may join with it; empty: any worker whose name is free."""
    uses: int
    used: int
    create_time: datetime
    expire_time: datetime
    revoked: bool


def create_token(*, worker: str, uses: int, lifetime: timedelta) -> Flow[tuple[JoinToken, str]]:
    """A new token, and its secret."""
    lasts = Duration()
    lasts.FromTimedelta(lifetime)
    request = pb.CreateJoinTokenRequest(worker=worker, uses=uses, lifetime=lasts)
    response = yield from rpc(pb.CreateJoinTokenResponse, request)
    return _token(response.token), response.secret


def tokens() -> Flow[list[JoinToken]]:
    """The tokens that have not expired, newest first."""
    response = yield from rpc(pb.ListJoinTokensResponse, pb.ListJoinTokensRequest())
    return [_token(token) for token in response.tokens]


def revoke_token(token_id: str) -> Flow[JoinToken]:
    """Revokes a token."""
    response = yield from rpc(pb.RevokeJoinTokenResponse, pb.RevokeJoinTokenRequest(id=token_id))
    return _token(response.token)


def revoke_worker(worker: str) -> Flow[None]:
    """Revokes a worker's certificates."""
    yield from rpc(pb.RevokeWorkerResponse, pb.RevokeWorkerRequest(worker=worker))


def _token(proto: pb.JoinToken) -> JoinToken:
    return JoinToken(
        id=proto.id,
        worker=proto.worker,
        uses=proto.uses,
        used=proto.used,
        create_time=proto.create_time.ToDatetime(UTC),
        expire_time=proto.expire_time.ToDatetime(UTC),
        revoked=proto.HasField("revoke_time"),
    )
