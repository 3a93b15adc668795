"""The certificate that identifies this worker, with its key, in one file of its home.

    joining.key       the key of an unfinished join: a repeat with the same key counts as the same join
    credential.json   key, certificate, authorities, and where workers connect

Both have mode 0600. A new credential is written beside the old one, made durable, and renamed into its place.
Whenever the daemon dies, the file is either the old one or the new one, and the worker can connect with both.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.durable import replace
from headrace.spiffe import worker_of
from headrace.v1 import join_pb2

log = logging.getLogger(__name__)
FILE = "credential.json"
_JOINING = "joining.key"
RENEWED_AFTER = 2 / 3
"""As a part of the certificate's lifetime. The remaining third is for repeated attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """The worker's identity, and where it connects with it."""

    worker: str
    key: str = field(repr=False)
    certificate: str = field(repr=False)
    authorities: str = field(repr=False)
    addresses: tuple[str, ...] = ()
    port: int = 0
    since: datetime
    until: datetime
    token: str = ""
    """The id of the token that the worker joined with."""
    token_used_up: bool = False
    """Whether nobody else can join with that token."""

    @property
    def renewed_at(self) -> datetime:
        """When to request the next certificate."""
        return self.since + RENEWED_AFTER * self.lasts

    @property
    def lasts(self) -> timedelta:
        """The certificate's whole lifetime."""
        return self.until - self.since

    def listeners(self, replicas: Sequence[str]) -> tuple[str, ...]:
        """Where the schedulers that users reach at these addresses listen for workers."""
        if self.addresses or not self.port:
            return self.addresses or tuple(replicas)
        hosts = [replica.rpartition(":")[0] for replica in replicas]
        return tuple(dict.fromkeys(f"{host}:{self.port}" for host in hosts))


def credential_of(key: ec.EllipticCurvePrivateKey, got: join_pb2.Credential) -> Credential:
    """What a scheduler has signed. Raises `ValueError` if it is no certificate of a worker for this key."""
    return _credential(
        _pem(key),
        got.certificate,
        got.authorities,
        addresses=tuple(got.worker_addresses),
        port=got.worker_port,
    )


def load(home: Path) -> Credential | None:
    """The worker's credential; None if it has not joined, or the file cannot be used any more."""
    try:
        kept = json.loads((home / FILE).read_text())
        return _credential(
            kept["key"],
            kept["certificate"],
            kept["authorities"],
            addresses=tuple(kept["addresses"]),
            port=kept["port"],
            token=kept.get("token", ""),
            token_used_up=kept.get("token_used_up", False),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be used, so this worker must join again: %s", home / FILE, error)
        return None


def store(home: Path, credential: Credential) -> None:
    """Replaces the previous credential, and deletes the key of the join."""
    content = {
        "key": credential.key,
        "certificate": credential.certificate,
        "authorities": credential.authorities,
        "addresses": list(credential.addresses),
        "port": credential.port,
        "token": credential.token,
        "token_used_up": credential.token_used_up,
    }
    replace(home / FILE, json.dumps(content, indent=1).encode())
    (home / _JOINING).unlink(missing_ok=True)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new key."""
    return ec.generate_private_key(ec.SECP256R1())


def joining_key(home: Path) -> ec.EllipticCurvePrivateKey:
    """The key to join with: that of an unfinished join, else a new one, which is saved."""
    try:
        key = serialization.load_pem_private_key((home / _JOINING).read_bytes(), None)
    except (FileNotFoundError, ValueError):
        key = None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key
    made = new_key()
    replace(home / _JOINING, _pem(made).encode())
    return made


def signing_request(key: ec.EllipticCurvePrivateKey, worker: str) -> str:
    """The request for a certificate of a key, in PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, worker[:64])])
    asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return asked.public_bytes(serialization.Encoding.PEM).decode()


def _credential(
    key: str,
    certificate: str,
    authorities: str,
    *,
    addresses: tuple[str, ...],
    port: int,
    token: str = "",
    token_used_up: bool = False,
) -> Credential:
    parsed = x509.load_pem_x509_certificate(certificate.encode())
    own = serialization.load_pem_private_key(key.encode(), None)
    if not isinstance(own, ec.EllipticCurvePrivateKey) or own.public_key() != parsed.public_key():
        raise ValueError("the certificate is for another key")
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    workers = [worker for uri in uris if (worker := worker_of(uri)) is not None]
    if len(workers) != 1:
        raise ValueError("the certificate names no worker")
    return Credential(
        worker=workers[0],
        key=key,
        certificate=certificate,
        authorities=authorities,
        addresses=addresses,
        port=port,
        since=parsed.not_valid_before_utc,
        until=parsed.not_valid_after_utc,
        token=token,
        token_used_up=token_used_up,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
