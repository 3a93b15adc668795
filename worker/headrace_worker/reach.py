"""How a worker reaches the schedulers: as users do, or with its certificate at the listeners for workers.

gRPC says little about a TLS handshake that fails. `explained` then makes a handshake of its own, and says what was
wrong.
"""

import asyncio
import logging
import os
import socket
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import grpc

from headrace.pinned import AuthorityAwayError
from headrace.target import Target
from headrace_worker.backoff import Backoff
from headrace_worker.credential import Credential

log = logging.getLogger(__name__)
_PROBE_S: Final = 3.0
_CLOCKS: Final = ("certificate is not yet valid", "certificate has expired")
_AGAIN: Final = "Join again with a new token: `headrace worker --join`"


def target_of(scheduler: str | None, tls_ca: Path | None) -> Target:
    """The schedulers. If `tls_ca` is a fingerprint, waits until one of them shows its authority.

    Raises InvalidFieldError, and what `Target.of` raises."""
    backoff, said = Backoff(cap_s=5.0), ""
    while True:
        try:
            return Target.of(scheduler, field="--scheduler", tls_ca=tls_ca)
        except AuthorityAwayError as error:
            if str(error) != said:
                log.warning("cannot connect yet, trying again: %s", error)
            said = str(error)
        time.sleep(backoff.next_s())


class Joined:
    """The schedulers' listeners for workers."""

    def __init__(self, target: Target, credential: Credential) -> None:
        self._target = target
        self.credential = credential

    @property
    def replicas(self) -> tuple[str, ...]:
        """Where they listen."""
        return self.credential.listeners(self._target.replicas)

    def credentials(self) -> grpc.ChannelCredentials:
        """The credentials of a channel that is opened now."""
        held = self.credential
        return grpc.ssl_channel_credentials(
            held.authorities.encode(), held.key.encode(), held.certificate.encode()
        )

    async def explained(self, address: str, why: str) -> str:
        """Why no session was established, with the remedy."""
        if not why.startswith("UNAVAILABLE"):
            return why
        return await self.refusal(address) or why

    async def refusal(self, address: str) -> str:
        """Why TLS rejects this worker, or why the worker does not trust the server; empty if neither is the case."""
        if self.credential.until <= datetime.now(UTC):
            return (
                f"this worker's certificate expired on {self.credential.until:%Y-%m-%d %H:%M} UTC. {_AGAIN}"
            )
        return await asyncio.to_thread(_handshake, address, self.credential)


async def explained_without_certificate(address: str, why: str) -> str:
    """Why no session was established for a worker that has not joined."""
    if why.startswith("UNIMPLEMENTED"):
        return (
            f"{address} serves no workers without a certificate. Join with a token: `headrace worker --join`"
        )
    return why


def _handshake(address: str, held: Credential) -> str:
    """What is wrong with a TLS handshake; empty if nothing is, or nobody listens."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cadata=held.authorities)
    with os.fdopen(os.memfd_create("credential"), "w") as file:  # ssl only accepts files
        file.write(held.key + held.certificate)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, int(port)), timeout=_PROBE_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as line,
        ):
            # In TLS 1.3 a server checks the certificate after the handshake. One that accepts it speaks first.
            taken = line.recv(1)
    except (ConnectionResetError, BrokenPipeError):
        taken = b""
    except ssl.SSLCertVerificationError as error:
        if error.verify_message in _CLOCKS:
            return (
                f"the scheduler at {address} presents a certificate that is not valid at this machine's time "
                f"({error.verify_message}). Set the clock, or issue a new certificate: `headrace ca server`"
            )
        return (
            f"the scheduler at {address} presents a certificate that this worker does not trust "
            f"({error.verify_message}). If the authority is a new one: {_AGAIN[0].lower()}{_AGAIN[1:]}. If the name is "
            "wrong: `headrace ca server` makes a certificate for it"
        )
    except ssl.SSLError as error:
        said = (error.reason or str(error)).lower().replace("_", " ")
        return f"{_not_taken(address, held)} ({said}). {_AGAIN}"
    except (OSError, ValueError):
        return ""
    return "" if taken else f"{_not_taken(address, held)}. {_AGAIN}"


def _not_taken(address: str, held: Credential) -> str:
    """Includes the times, since the scheduler's clock may be wrong."""
    since, until = (f"{time:%Y-%m-%d %H:%M}" for time in (held.since, held.until))
    return f"the scheduler at {address} rejects this worker's certificate, valid from {since} to {until} UTC"
