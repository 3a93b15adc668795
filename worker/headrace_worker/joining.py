"""How a worker gets its certificate, and the next one.

    no certificate → Join with a token, over the users' listener → connects with it
    two thirds of its lifetime are over → Renew, over the workers' listener → a new session with the new one

A join is tried again until a scheduler answers; one that is refused ends the daemon. A renewal is tried again until it
succeeds: meanwhile the old certificate goes on, and the worker's trouble says so. Trials notice nothing of either.

Local time says when to renew, and nothing else. A clock that is wrong by less than a third of the lifetime does no
harm.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from headrace.error_status import from_rpc_error
from headrace.errors import DeadlineError, HeadraceError, InvalidFieldError, UnreachableError, Violation
from headrace.target import Target, proxy_options
from headrace.v1 import join_pb2, join_pb2_grpc
from headrace_worker import credential as credentials
from headrace_worker.backoff import Backoff
from headrace_worker.credential import Credential
from headrace_worker.reach import Joined

log = logging.getLogger(__name__)
_CALL_S = 15.0
_LONGEST_S = 60.0
_LOOK_S = 600.0
"""The clock is looked at this often, since it may be set."""


async def joined(target: Target, home: Path, worker: str, token: str | None) -> Joined | None:
    """How this worker reaches the schedulers with its certificate; it joins first where it has a token and needs to.

    None where it has neither a certificate nor a token. Raises HeadraceError where it may not join.
    """
    found = await asyncio.to_thread(credentials.load, home)
    now = datetime.now(UTC)
    if found is not None and found.worker == worker and found.until > now:
        log.info("worker %s has a certificate until %s", worker, f"{found.until:%Y-%m-%d %H:%M} UTC")
        return Joined(target, found)
    if token is not None:
        return Joined(target, await _join(target, home, worker, token))
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
        f"is missing, for the certificate in {home} ended on {found.until:%Y-%m-%d %H:%M} UTC",
        f"Join again with a new token: `headrace worker-token create --worker {worker}`.",
    )


async def _join(target: Target, home: Path, worker: str, token: str) -> Credential:
    key = await asyncio.to_thread(credentials.joining_key, home)
    request = join_pb2.JoinRequest(
        token=token, worker=worker, signing_request=credentials.signing_request(key, worker)
    )
    backoff = Backoff(cap_s=5.0)
    said = ""
    while True:
        for replica in target.replicas:
            try:
                response = await _call(replica, target.credentials(), "Join", request)
            except HeadraceError as error:
                if not (error.retryable or isinstance(error, DeadlineError)):
                    raise
                if str(error) != said:
                    log.warning("cannot join at %s yet, trying again: %s", replica, error)
                    said = str(error)
            else:
                made = credentials.credential_of(key, response.credential)
                await asyncio.to_thread(credentials.store, home, made)
                log.info("joined as worker %s, until %s", worker, f"{made.until:%Y-%m-%d %H:%M} UTC")
                return made
        await backoff.wait()


class Renewal:
    """Keeps the certificate of a worker that has joined from ending."""

    def __init__(self, reach: Joined, home: Path, renewed: Callable[[], None]) -> None:
        """`renewed` is called when there is a new one."""
        self._reach = reach
        self._home = home
        self._renewed = renewed
        self.trouble = ""
        """Why it could not be renewed so far, or nothing."""

    async def run(self) -> None:
        """Renews again and again until it is cancelled."""
        backoff = Backoff(cap_s=_LONGEST_S)
        while True:
            held = self._reach.credential
            wait_s = (held.renewed_at - datetime.now(UTC)).total_seconds()
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, _LOOK_S))
                continue
            try:
                made = await self._renew(held)
                await asyncio.to_thread(credentials.store, self._home, made)
            except (HeadraceError, OSError, ValueError) as error:
                self._complain(held, error)
                backoff.cap_s = _pause_s(held, datetime.now(UTC))
                await backoff.wait()
            else:
                self._reach.credential = made
                self.trouble = ""
                backoff.succeeded()
                log.info("the certificate is renewed, until %s", f"{made.until:%Y-%m-%d %H:%M} UTC")
                self._renewed()

    def _complain(self, held: Credential, error: Exception) -> None:
        ends = "ended" if held.until <= datetime.now(UTC) else "ends"
        when = f"{held.until:%Y-%m-%d %H:%M} UTC"
        trouble = f"its certificate {ends} on {when} and cannot be renewed: {error}"
        if trouble != self.trouble:
            log.warning("%s", trouble)
        self.trouble = trouble

    async def _renew(self, held: Credential) -> Credential:
        key = credentials.new_key()
        request = join_pb2.RenewRequest(signing_request=credentials.signing_request(key, held.worker))
        failure: HeadraceError | None = None
        for address in self._reach.replicas:
            try:
                response = await _call(address, self._reach.credentials(), "Renew", request)
            except UnreachableError as error:
                said = await self._reach.explained(address, f"UNAVAILABLE: {error.message}")
                failure = UnreachableError(said, remedy="It is tried again.")
            except HeadraceError as error:
                failure = error
            else:
                return credentials.credential_of(key, response.credential)
        assert failure is not None
        raise failure


def _pause_s(held: Credential, now: datetime) -> float:
    """The longest pause before it is tried again: the sooner, the shorter the certificate lasts."""
    return _LONGEST_S if held.until <= now else min(_LONGEST_S, max(0.5, held.lasts.total_seconds() / 50))


async def _call(address: str, found: grpc.ChannelCredentials | None, name: str, request: Any) -> Any:
    """One call; raises HeadraceError."""
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
