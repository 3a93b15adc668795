"""How a worker gets its certificate, and the next one.

    no certificate → Join with a token, over the users' listener → connect with the certificate
    two thirds of its lifetime are over → Renew, over the workers' listener → open a new session with the new one

A join is retried until a scheduler answers; a refusal ends the daemon. A renewal is retried until it succeeds.
Meanwhile the old certificate works, and the worker reports the problem. Trials notice neither.

A worker that has a certificate uses no token, with one exception: its certificate is refused, and the token is not
the one that it joined with. Then the certificate was revoked, or another authority signs now. If nobody answers where
workers connect, such a token is tried once: the schedulers may have another port for workers.

Local time says when to renew, and at the start whether the certificate has expired. A clock that is wrong by less
than a third of the lifetime does no harm.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from headrace.error_status import from_rpc_error
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidFieldError,
    UnreachableError,
    Violation,
    WorkerIdentityError,
    WorkerRevokedError,
)
from headrace.target import Target, proxy_options
from headrace.tls_faults import tls_fault
from headrace.v1 import join_pb2, join_pb2_grpc
from headrace_worker import credential as credentials
from headrace_worker.backoff import Backoff
from headrace_worker.credential import Credential
from headrace_worker.join_token import GivenToken, id_of
from headrace_worker.reach import Joined
from headrace_worker.run_as import OtherUser

log = logging.getLogger(__name__)
_CALL_S = 15.0
_LONGEST_S = 60.0
_LOOK_S = 600.0
"""The clock is checked this often, since it may be set."""


def _local_time() -> datetime:
    return datetime.now(UTC)


async def joined(
    target: Target,
    home: Path,
    worker: str,
    token: GivenToken | None,
    trials: OtherUser | None = None,
    clock: Callable[[], datetime] = _local_time,
) -> Joined | None:
    """How this worker reaches the schedulers with its certificate; it joins first if it has a token and needs to.

    `trials` is the user that trials run as, who must not be able to read the token. Returns None if there is
    neither a certificate nor a token. Raises HeadraceError if it may not join.
    """
    found = await asyncio.to_thread(credentials.load, home)
    if found is not None and found.worker == worker and found.until > clock():
        log.info("worker %s has a certificate until %s", worker, f"{found.until:%Y-%m-%d %H:%M} UTC")
        reach = Joined(target, found)
        if token is None or not await _is_refused(reach, target, home, token, trials):
            return reach
    elif found is not None and found.worker == worker:
        log.warning("the certificate of worker %s expired on %s", worker, f"{found.until:%Y-%m-%d %H:%M} UTC")
    if token is not None:
        made = await _join(target, home, worker, token.read(trials))
        if made.token_used_up:
            token.remove()
        return Joined(target, made)
    if found is None:
        return None
    if found.worker != worker:
        raise _fault(
            "--name",
            worker,
            f"is not the name of the certificate in {home}: '{found.worker}'",
            f"Start it with --name {found.worker}, choose another --home, or join as '{worker}' with --join.",
        )
    raise _fault(
        "--join",
        "",
        f"is missing, for the certificate in {home} expired on {found.until:%Y-%m-%d %H:%M} UTC",
        f"Join again with a new token: `headrace worker-token create --worker {worker}`.",
    )


async def _is_refused(
    reach: Joined, target: Target, home: Path, token: GivenToken, trials: OtherUser | None
) -> bool:
    """Whether the schedulers refuse a certificate, and the token is not the one that it was issued for."""
    held, given = reach.credential, await asyncio.to_thread(lambda: token.id)
    if given == held.token and held.token_used_up:  # the daemon was killed before it removed the file
        token.remove()
    if given in ("", held.token):
        return False
    try:
        reach.credential = await _renewed(reach)
        await asyncio.to_thread(credentials.store, home, reach.credential)
    except (WorkerRevokedError, WorkerIdentityError) as error:
        log.warning("joining again with another token: %s", error)
        return True
    except UnreachableError as error:
        log.info("the certificate is not renewed yet: %s", error)
        with suppress(HeadraceError, OSError, ValueError):  # the present certificate stays
            made = await _join(target, home, held.worker, token.read(trials), once=True)
            reach.credential = made
            if made.token_used_up:
                token.remove()
    except (HeadraceError, OSError, ValueError) as error:
        log.info("the certificate is not renewed yet: %s", error)
    return False


async def _join(target: Target, home: Path, worker: str, token: str, *, once: bool = False) -> Credential:
    """Joins, when a scheduler answers; or asks each of them `once`, and raises the last one's failure."""
    key = await asyncio.to_thread(credentials.joining_key, home)
    request = join_pb2.JoinRequest(
        token=token, worker=worker, signing_request=credentials.signing_request(key, worker)
    )
    backoff = Backoff(cap_s=5.0)
    failure: HeadraceError | None = None
    said = ""
    while failure is None or not once:
        for replica in target.replicas:
            try:
                response = await _call(replica, target.credentials(), "Join", request)
            except HeadraceError as error:
                if not (error.retryable or isinstance(error, DeadlineError)):
                    raise
                failure, fault = error, tls_fault(error.message)
                why = str(error) if fault is None else f"{fault.message}. {fault.remedy}"
                if why != said:
                    log.warning("cannot join at %s yet, trying again: %s", replica, why)
                    said = why
            else:
                made = replace(
                    credentials.credential_of(key, response.credential),
                    token=id_of(token),
                    token_used_up=response.token_used_up,
                )
                await asyncio.to_thread(credentials.store, home, made)
                log.info("joined as worker %s, until %s", worker, f"{made.until:%Y-%m-%d %H:%M} UTC")
                return made
        if not once:
            await backoff.wait()
    raise failure


class Renewal:
    """Keeps the certificate of a worker that has joined from expiring."""

    def __init__(
        self,
        reach: Joined,
        home: Path,
        renewed: Callable[[], None],
        clock: Callable[[], datetime] = _local_time,
    ) -> None:
        """`renewed` is called when there is a new certificate."""
        self._clock = clock
        self._reach = reach
        self._home = home
        self._renewed = renewed
        self.trouble = ""
        """Why the certificate could not be renewed so far, or nothing."""

    async def run(self) -> None:
        """Renews again and again until cancelled."""
        backoff = Backoff(cap_s=_LONGEST_S)
        while True:
            held = self._reach.credential
            wait_s = (held.renewed_at - self._clock()).total_seconds()
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, _LOOK_S))
                continue
            try:
                made = await _renewed(self._reach)
                await asyncio.to_thread(credentials.store, self._home, made)
            except (HeadraceError, OSError, ValueError) as error:
                self._complain(held, error)
                backoff.cap_s = _pause_s(held, self._clock())
                await backoff.wait()
            else:
                self._reach.credential = made
                self.trouble = ""
                backoff.succeeded()
                log.info("the certificate is renewed, until %s", f"{made.until:%Y-%m-%d %H:%M} UTC")
                self._renewed()

    def _complain(self, held: Credential, error: Exception) -> None:
        ends = "ended" if held.until <= self._clock() else "ends"
        when = f"{held.until:%Y-%m-%d %H:%M} UTC"
        trouble = f"its certificate {ends} on {when} and cannot be renewed: {error}"
        if trouble != self.trouble:
            log.warning("%s", trouble)
        self.trouble = trouble


async def _renewed(reach: Joined) -> Credential:
    """The next certificate, from any scheduler. Raises HeadraceError: WorkerIdentityError if TLS did not accept
    the present one."""
    held, key = reach.credential, credentials.new_key()
    request = join_pb2.RenewRequest(signing_request=credentials.signing_request(key, held.worker))
    failure: HeadraceError | None = None
    for address in reach.replicas:
        try:
            response = await _call(address, reach.credentials(), "Renew", request)
        except UnreachableError as error:
            refusal = await reach.refusal(address)
            failure = WorkerIdentityError(refusal, remedy="") if refusal else error
        except HeadraceError as error:
            failure = error
        else:
            made = credentials.credential_of(key, response.credential)
            return replace(made, token=held.token, token_used_up=held.token_used_up)
    assert failure is not None
    raise failure


def _pause_s(held: Credential, now: datetime) -> float:
    """The longest pause before a retry: the shorter the certificate lasts, the sooner."""
    return _LONGEST_S if held.until <= now else min(_LONGEST_S, max(0.5, held.lasts.total_seconds() / 50))


async def _call(address: str, found: grpc.ChannelCredentials | None, name: str, request: Any) -> Any:
    """Makes one call; raises HeadraceError."""
    options = (*proxy_options(address), ("grpc.use_local_subchannel_pool", 1))
    if found is None:
        channel = grpc.aio.insecure_channel(address, options)
    else:
        channel = grpc.aio.secure_channel(address, found, options)
    async with channel:
        method = getattr(join_pb2_grpc.JoinServiceStub(channel), name)
        try:
            return await method(request, timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
