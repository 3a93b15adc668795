"""The certificate that agents of several machines show each other: that of a worker on the machine, which has joined.

It lies in the worker's home, and the worker renews it there. So it is read again when its file has changed: for each
connection that comes, and for each that is made. Whoever shows a certificate of the same authority is let in; only
workers have some that say so of a client.
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
"""Of channels: all workers' certificates have this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    key: bytes
    certificate: bytes
    authorities: bytes


class WorkerCertificate:
    """The certificate in a worker's home."""

    def __init__(self, home: Path) -> None:
        """Raises InvalidFieldError where there is none, or one that agents cannot show."""
        self._file = home / FILE
        self._seen = self._stamp()
        self._held = self._read()

    def channel(self) -> grpc.ChannelCredentials:
        """What a connection that is made now shows and trusts."""
        self._renew()
        held = self._held
        return grpc.ssl_channel_credentials(held.authorities, held.key, held.certificate)

    def server(self) -> grpc.ServerCredentials:
        """What is shown to those who connect, and asked of them."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._changed, require_client_authentication=True
        )

    def _changed(self) -> Any:
        """Asked by gRPC for each connection, in a thread of its own; None: as before."""
        return self._configuration() if self._renew() else None

    def _configuration(self) -> Any:
        held = self._held
        return grpc.ssl_server_certificate_configuration([(held.key, held.certificate)], held.authorities)

    def _renew(self) -> bool:
        """Read the file if it has changed; one that cannot be read leaves all as it is."""
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
            raise _fault(self._file, "is for a client alone, and agents cannot show it", remedy)
        return held


_JOIN: Final = "Name the --home of a worker on this machine that has joined: `headrace worker --join`."
_SAME_USER: Final = "Run the agent as the worker's user."


def _fault(file: Path, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError(
        [Violation(field="--worker-home", value=str(file), message=message, remedy=remedy)]
    )
