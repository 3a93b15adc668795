"""JoinService: signs certificates of workers, and keeps the tokens that they join with.

The service is on both listeners. A call on the listener for workers comes from a worker, so it may only renew.
Anyone with a join token may call Join; the other calls are for admins.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from grpc.aio import ServicerContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from headrace.errors import InvalidFieldError, JoinRefusedError, Violation, WorkerIdentityError
from headrace.spec.names import DEFAULT_PROJECT, WORKER
from headrace.v1 import join_pb2, join_pb2_grpc
from headrace_services.identity import join_tokens
from headrace_services.identity.lifetimes import WORKER_LIVES
from headrace_services.identity.shown import certificate_of
from headrace_services.scheduler.store import joins
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.joins import StoredToken

if TYPE_CHECKING:
    from headrace_services.identity.authority import Authority

log = logging.getLogger(__name__)

DEFAULT_LIFETIME = timedelta(hours=1)
TOLERATED = timedelta(minutes=1)
"""How far clocks may differ without a warning."""
AT_ONCE = 2
"""How many joins are handled at once. So a caller that tries tokens cannot use up the database's connections."""
Context = ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """What signs certificates, and the addresses that workers connect to with them."""

    authority: "Authority"
    worker_port: int
    worker_addresses: tuple[str, ...] = ()
    lives: timedelta = WORKER_LIVES


class JoinServicer(join_pb2_grpc.JoinServiceServicer):
    """The service, on one of the two listeners."""

    def __init__(
        self,
        engine: AsyncEngine,
        signing: Signing | None,
        *,
        for_workers: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`clock`: this machine's, by which TLS accepts a certificate."""
        self._engine = engine
        self._signing = signing
        self._for_workers = for_workers
        self._clock = clock
        self._joining = asyncio.Semaphore(AT_ONCE)

    async def Join(self, request: join_pb2.JoinRequest, _: Context) -> join_pb2.JoinResponse:
        """Sign a first certificate."""
        # only if there is an authority
        from headrace_services.identity.authority import digest_of, public_key_in

        signing = self._able()
        token = join_tokens.read(request.token)
        if token is None:
            raise JoinRefusedError(
                "token: it is not a join token",
                remedy="It reads hr_ID_SECRET and has 63 characters. Copy it whole, as `headrace worker-token create` "
                "printed it.",
            )
        _checked_worker(request.worker, "worker")
        key = public_key_in(request.signing_request)
        async with self._joining, transaction(self._engine) as conn:
            now = await self._time(conn)
            used_up = await joins.join(
                conn,
                token,
                worker=request.worker,
                key_digest=digest_of(key),
                now=now,
                until=now + signing.lives,
            )
        log.info("worker '%s' joined with token 'hr_%s_…'", request.worker, token.id)
        pem = signing.authority.sign_worker(request.worker, key, now=now, lives=signing.lives)
        return join_pb2.JoinResponse(credential=_credential(signing, pem), token_used_up=used_up)

    async def Renew(self, request: join_pb2.RenewRequest, context: Context) -> join_pb2.RenewResponse:
        """Sign the caller's next certificate."""
        # only if there is an authority
        from headrace_services.identity.authority import digest_of, public_key_in

        signing = self._able()
        if not self._for_workers:
            raise WorkerIdentityError(
                "a certificate is renewed on the listener for workers", remedy="Update the worker."
            )
        shown = certificate_of(context)
        key = public_key_in(request.signing_request)
        async with transaction(self._engine) as conn:
            now = await self._time(conn)
            await joins.renew(
                conn,
                shown,
                key_digest=digest_of(key),
                now=now,
                until=now + signing.lives,
            )
        log.info("worker '%s' renewed its certificate", shown.worker)
        pem = signing.authority.sign_worker(shown.worker, key, now=now, lives=signing.lives)
        return join_pb2.RenewResponse(credential=_credential(signing, pem))

    async def CreateJoinToken(
        self, request: join_pb2.CreateJoinTokenRequest, _: Context
    ) -> join_pb2.CreateJoinTokenResponse:
        """Make a token."""
        self._able()
        self._for_users()
        if request.worker:
            _checked_worker(request.worker, "worker")
        lifetime = request.lifetime.ToTimedelta() if request.HasField("lifetime") else DEFAULT_LIFETIME
        token = join_tokens.new_token()
        async with transaction(self._engine) as conn:
            stored = await joins.create(
                conn, token, worker=request.worker, uses=request.uses or 1, lifetime=lifetime
            )
        return join_pb2.CreateJoinTokenResponse(token=_token(stored), secret=token.text)

    async def ListJoinTokens(
        self,
        request: join_pb2.ListJoinTokensRequest,  # noqa: ARG002
        context: Context,  # noqa: ARG002
    ) -> join_pb2.ListJoinTokensResponse:
        """List the tokens that have not expired."""
        self._for_users()
        async with transaction(self._engine) as conn:
            found = await joins.listed(conn)
        return join_pb2.ListJoinTokensResponse(tokens=map(_token, found))

    async def RevokeJoinToken(
        self, request: join_pb2.RevokeJoinTokenRequest, _: Context
    ) -> join_pb2.RevokeJoinTokenResponse:
        """End a token."""
        self._for_users()
        token_id = join_tokens.id_in(request.id)
        if token_id is None:
            raise _fault(
                "id", "", "is not the id of a join token", "`headrace worker-token list` lists them."
            )
        async with transaction(self._engine) as conn:
            found = await joins.revoke(conn, token_id)
        return join_pb2.RevokeJoinTokenResponse(token=_token(found))

    async def RevokeWorker(
        self, request: join_pb2.RevokeWorkerRequest, _: Context
    ) -> join_pb2.RevokeWorkerResponse:
        """End a worker's certificates."""
        self._for_users()
        _checked_worker(request.worker, "worker")
        async with transaction(self._engine) as conn:
            known = await joins.revoke_worker(conn, request.worker)
        if not known:
            raise _fault(
                "worker",
                request.worker,
                "has not joined",
                "`headrace workers` lists the workers and their names.",
            )
        log.info("the certificates of worker '%s' are revoked", request.worker)
        return join_pb2.RevokeWorkerResponse()

    def _able(self) -> Signing:
        if self._signing is None:
            raise JoinRefusedError(
                "this scheduler lets no workers join: it has no listener for them",
                remedy="Workers connect to it without joining. To ask for certificates, start it with --worker-listen "
                "and --ca.",
            )
        return self._signing

    async def _time(self, conn: AsyncConnection) -> datetime:
        """The database's time, by which certificates are signed. If this machine's clock is far from it, that is
        logged."""
        now = await joins.database_time(conn)
        apart = self._clock() - now
        if abs(apart) > TOLERATED:
            log.warning(
                "the clock of this machine is %d minutes %s the database's. Certificates are signed by the database's, "
                "and TLS compares them with this one: correct it",
                abs(apart) // timedelta(minutes=1),
                "behind" if apart < timedelta() else "ahead of",
            )
        return now

    def _for_users(self) -> None:
        if self._for_workers:
            raise WorkerIdentityError(
                "workers renew their certificates, and manage no join tokens",
                remedy=f"Call the users' listener with the token of an admin of project '{DEFAULT_PROJECT}'.",
            )


def _credential(signing: Signing, certificate: bytes) -> join_pb2.Credential:
    return join_pb2.Credential(
        certificate=certificate.decode(),
        authorities=signing.authority.trusted_pem.decode(),
        worker_addresses=signing.worker_addresses,
        worker_port=signing.worker_port,
    )


def _token(stored: StoredToken) -> join_pb2.JoinToken:
    found = join_pb2.JoinToken(id=stored.id, worker=stored.worker, uses=stored.uses, used=stored.used)
    found.create_time.FromDatetime(stored.create_time)
    found.expire_time.FromDatetime(stored.expire_time)
    if stored.revoke_time is not None:
        found.revoke_time.FromDatetime(stored.revoke_time)
    return found


def _checked_worker(name: str, field: str) -> None:
    problem = WORKER.problem(name, field)
    if problem is not None:
        raise InvalidFieldError([problem.violation()])


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
