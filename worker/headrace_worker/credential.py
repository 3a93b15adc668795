"""The certificate that says who this worker is, with its key, in one file of its home.

    joining.key       the key of a join that is not done yet: a repeat with the same key is the same join
    credential.json   key, certificate, authorities, and where workers connect

Both have mode 0600. A new credential is written beside the old one, made durable, and put in its place by one rename:
whenever the daemon dies, the file is the old one or the new one, and both let it connect.
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
"""Of its lifetime. A third is left to try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Who the worker is, and where it goes with it."""

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
    """Whether that one lets nobody else join."""

    @property
    def renewed_at(self) -> datetime:
        """When to ask for the next one."""
        return self.since + RENEWED_AFTER * self.lasts

    @property
    def lasts(self) -> timedelta:
        """Its whole lifetime."""
        return self.until - self.since

    def listeners(self, replicas: Sequence[str]) -> tuple[str, ...]:
        """Where schedulers listen for workers, of those that users reach at these addresses."""
        if self.addresses or not self.port:
            return self.addresses or tuple(replicas)
        hosts = [replica.rpartition(":")[0] for replica in replicas]
        return tuple(dict.fromkeys(f"{host}:{self.port}" for host in hosts))


def credential_of(key: ec.EllipticCurvePrivateKey, got: join_pb2.Credential) -> Credential:
    """What a scheduler has signed. Raises `ValueError` where that is no certificate of a worker for this key."""
    return _credential(
        _pem(key),
        got.certificate,
        got.authorities,
        addresses=tuple(got.worker_addresses),
        port=got.worker_port,
    )


def load(home: Path) -> Credential | None:
    """The worker's credential; None where it has not joined, or the file cannot be used any more."""
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
    """Puts a credential in the place of the one before, and forgets the key of the join."""
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
    """A key that nobody else has."""
    return ec.generate_private_key(ec.SECP256R1())


def joining_key(home: Path) -> ec.EllipticCurvePrivateKey:
    """The key to join with: that of a join which was not done, else a new one, which is written down."""
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
    """What asks for a certificate of a key, PEM."""
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
