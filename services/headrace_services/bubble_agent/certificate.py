"""The certificate that agents of several machines present to each other: that of a worker on the machine, which
has joined.

It is in the worker's home, where the worker renews it. So it is read again when its file has changed: for each
incoming connection, and for each outgoing one. A peer with a certificate of the same authority is accepted; only
workers have such certificates for clients.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from cryptography import x509

from headrace.errors import InvalidFieldError, Violation
from headrace.spiffe import WORKERS_HOST

FILE: Final = "credential.json"
OPTIONS: Final = (("grpc.ssl_target_name_override", WORKERS_HOST),)
"""For channels: all workers' certificates have this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    key: bytes
    certificate: bytes
    authorities: bytes


class WorkerCertificate:
    """The certificate in a worker's home."""

    def __init__(self, home: Path) -> None:
        """Raises InvalidFieldError if there is none, or one that agents cannot use."""
        self._file = home / FILE
        self._seen = self._stamp()
        self._held = self._read()

    def channel(self) -> grpc.ChannelCredentials:
        """The credentials for a connection that is made now."""
        self._renew()
        held = self._held
        return grpc.ssl_channel_credentials(held.authorities, held.key, held.certificate)

    def server(self) -> grpc.ServerCredentials:
        """What the server presents to clients, and what it requires of them."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._changed, require_client_authentication=True
        )

    def _changed(self) -> Any:
        """Called by gRPC for each connection, in a separate thread; None: unchanged."""
        return self._configuration() if self._renew() else None

    def _configuration(self) -> Any:
        held = self._held
        return grpc.ssl_server_certificate_configuration([(held.key, held.certificate)], held.authorities)

    def _renew(self) -> bool:
        """Reads the file if it has changed; an unreadable file changes nothing."""
        try:
            seen = self._stamp()
            if seen == self._seen:
                return False
            self._held, self._seen = self._read(), seen
        except InvalidFieldError:
            return False
        return True

    def _stamp(self) -> tuple[int, int]:
        try:
            found = self._file.stat()
        except OSError as error:
            raise _fault(self._file, f"has no certificate: {error.strerror}", _JOIN) from None
        return found.st_ino, found.st_mtime_ns

    def _read(self) -> _Held:
        try:
            kept = json.loads(self._file.read_text())
            held = _Held(
                key=kept["key"].encode(),
                certificate=kept["certificate"].encode(),
                authorities=kept["authorities"].encode(),
            )
            shown = x509.load_pem_x509_certificate(held.certificate)
            names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except OSError as error:
            raise _fault(self._file, f"cannot be read: {error.strerror}", _SAME_USER) from None
        except (ValueError, KeyError, TypeError, AttributeError, x509.ExtensionNotFound):
            raise _fault(self._file, "holds no certificate of a worker", _JOIN) from None
        if WORKERS_HOST not in names.get_values_for_type(x509.DNSName):
            remedy = "The worker renews it automatically, or join again: `headrace worker --join`."
            raise _fault(self._file, "is valid only for clients, so agents cannot use it", remedy)
        return held


_JOIN: Final = "Name the --home of a worker on this machine that has joined: `headrace worker --join`."
_SAME_USER: Final = "Run the agent as the worker's user."


def _fault(file: Path, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError(
        [Violation(field="--worker-home", value=str(file), message=message, remedy=remedy)]
    )
