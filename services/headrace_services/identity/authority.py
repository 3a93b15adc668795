"""The certificate authority of a cluster: a folder with its key, and what it signs.

    DIR/ca.pem        what workers trust; further authorities may follow the first one
    DIR/ca.key        signs workers' certificates
    DIR/server.pem    what schedulers present, for the given host names
    DIR/server.key

`headrace ca init DIR HOST…` makes it. Every scheduler of a cluster has the same folder. A worker's certificate
names the worker as `headrace.spiffe` says, and is valid for a client, not for a server. Files are replaced by a
rename; keys have mode 0600.

Nothing here reads a clock: the caller passes the time.
"""

import ipaddress
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.durable import replace
from headrace.errors import InvalidFieldError, Violation
from headrace.home import make_private
from headrace.spiffe import WORKERS_HOST, worker_uri
from headrace_services.identity.lifetimes import AUTHORITY_LIVES, BACKDATED, SERVER_LIVES, WORKER_LIVES

CERTIFICATE: Final = "ca.pem"
KEY: Final = "ca.key"
SERVER: Final = "server.pem"
SERVER_KEY: Final = "server.key"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_BITS: Final = 64
_TIME: Final = (1 << _TIME_BITS) - 1

_INIT: Final = "Make it with `headrace ca init DIR HOST…`, or correct --ca."


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """An authority with its key, and the server's certificate."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    trusted_pem: bytes
    """What workers' peers must trust: this authority, and those that follow it in its file."""
    server_pem: bytes
    server_key_pem: bytes

    def sign_worker(
        self,
        name: str,
        public_key: CertificatePublicKeyTypes,
        *,
        now: datetime,
        lives: timedelta = WORKER_LIVES,
    ) -> bytes:
        """A worker's certificate, in PEM."""
        names = [x509.UniformResourceIdentifier(worker_uri(name)), x509.DNSName(WORKERS_HOST)]
        made = _signed(
            self.key,
            self.certificate,
            name,
            public_key,
            names,
            (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
            since=now - min(BACKDATED, lives / 10),
            until=now + lives,
            number=_numbered(now),
        )
        return made.public_bytes(serialization.Encoding.PEM)


def make(folder: Path, hosts: Sequence[str], *, now: datetime) -> None:
    """Makes an authority and a server's certificate in a folder. Raises InvalidFieldError if there is one already."""
    if (folder / KEY).exists() or (folder / CERTIFICATE).exists():
        raise _fault(
            "DIR",
            str(folder),
            "already holds a certificate authority",
            "To make a server certificate for other host names, use `headrace ca server`. A new authority goes into "
            "another folder; all workers must then join again.",
        )
    named = names_of(hosts)
    make_private(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Headrace workers")])
    signs = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + AUTHORITY_LIVES)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(own, critical=False)
        .sign(key, hashes.SHA256())
    )
    # The certificate last: an authority without one was never used, and is made again.
    _make_server(folder, made, key, named, now)
    replace(folder / KEY, _pem(key))
    replace(folder / CERTIFICATE, made.public_bytes(serialization.Encoding.PEM), mode=0o644)


def make_server(folder: Path, hosts: Sequence[str], *, now: datetime, into: Path | None = None) -> None:
    """Makes a new certificate of a server with its own key, for these host names: the schedulers', in the
    authority's folder, or another server's, which is written `into` a folder. Raises InvalidFieldError."""
    certificate, key, _ = _authority_in(folder)
    names = names_of(hosts)
    if into is not None:
        make_private(into)
    _make_server(into or folder, certificate, key, names, now)


def load_signer(folder: Path) -> x509.Certificate:
    """The authority's own certificate. Raises InvalidFieldError if it or its key cannot be used."""
    return _authority_in(folder)[0]


def load(folder: Path) -> Authority:
    """The authority in a folder. Raises InvalidFieldError if it is incomplete."""
    certificate, key, trusted = _authority_in(folder)
    server, server_key = _read(folder / SERVER), _read(folder / SERVER_KEY)
    shown = _parsed(folder / SERVER, server)
    if _public(shown.public_key()) != _public(_key(folder / SERVER_KEY, server_key).public_key()):
        raise _fault(
            "--ca", str(folder / SERVER), f"does not belong to {SERVER_KEY}", "Run `headrace ca server`."
        )
    return Authority(
        certificate=certificate, key=key, trusted_pem=trusted, server_pem=server, server_key_pem=server_key
    )


def public_key_in(request: str) -> CertificatePublicKeyTypes:
    """The key of a signing request (PEM), whose sender has the private key. Raises InvalidFieldError."""
    remedy = "Update the worker."
    try:
        asked = x509.load_pem_x509_csr(request.encode())
        sound = asked.is_signature_valid
        key = asked.public_key()
    except (ValueError, TypeError, InvalidSignature) as error:
        raise _fault("signing_request", "", "is not a certificate signing request", remedy) from error
    if not sound:
        raise _fault("signing_request", "", "is not signed by its own key", remedy)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(
        key.curve, ec.SECP256R1 | ec.SECP384R1
    ):
        raise _fault("signing_request", type(key).__name__, "has a key that is not P-256", remedy)
    return key


def digest_of(key: CertificatePublicKeyTypes) -> bytes:
    """Identifies a public key."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(_public(key))
    return digest.finalize()


def issued(certificate: x509.Certificate) -> datetime:
    """When a worker's certificate was signed, to the microsecond: its own times are whole seconds."""
    return _EPOCH + timedelta(microseconds=certificate.serial_number & _TIME)


def _numbered(now: datetime) -> int:
    """An unguessable serial number, with the time in its last bits."""
    return (1 << 79 | secrets.randbits(79)) << _TIME_BITS | (now - _EPOCH) // timedelta(microseconds=1)


def _make_server(
    folder: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: Sequence[x509.GeneralName],
    now: datetime,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + SERVER_LIVES, authority.not_valid_after_utc)
    made = _signed(
        authority_key,
        authority,
        "Headrace scheduler",
        key.public_key(),
        names,
        (ExtendedKeyUsageOID.SERVER_AUTH,),
        since=now - BACKDATED,
        until=until,
    )
    replace(folder / SERVER_KEY, _pem(key))
    # With the authority, whose fingerprint a client may know instead of its file.
    shown = [one.public_bytes(serialization.Encoding.PEM) for one in (made, authority)]
    replace(folder / SERVER, b"".join(shown), mode=0o644)


def _signed(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    name: str,
    public_key: CertificatePublicKeyTypes,
    names: Iterable[x509.GeneralName],
    usages: Sequence[x509.ObjectIdentifier],
    *,
    since: datetime,
    until: datetime,
    number: int | None = None,
) -> x509.Certificate:
    may = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(authority.subject)
        .public_key(public_key)
        .serial_number(number if number is not None else x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(min(until, authority.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(may, critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def names_of(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Hosts as a certificate names them. Raises InvalidFieldError."""
    if not hosts:
        raise _fault(
            "HOST", "", "is missing", "Name the hosts by which workers and users reach the schedulers."
        )
    return [_general(host) for host in hosts]


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not host.isascii() or "/" in host or ":" in host or not host.strip() or any(map(str.isspace, host)):
        raise _fault("HOST", host, "is not a host name or an IP address", "Give it without a port.")
    return x509.DNSName(host)


def _authority_in(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey, bytes]:
    trusted = _read(folder / CERTIFICATE)
    certificate = _parsed(folder / CERTIFICATE, trusted)
    key = _key(folder / KEY, _read(folder / KEY))
    if _public(certificate.public_key()) != _public(key.public_key()):
        raise _fault("--ca", str(folder / CERTIFICATE), f"does not belong to {KEY}", _INIT)
    return certificate, key, trusted


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _fault("--ca", str(file), f"cannot be read: {error.strerror}", _INIT) from error


def _parsed(file: Path, pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise _fault("--ca", str(file), "is not a certificate in PEM", _INIT) from error


def _key(file: Path, pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise _fault("--ca", str(file), "is not a private key in PEM without a password", _INIT) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _fault("--ca", str(file), "is not a key of an elliptic curve", _INIT)
    return key


def _public(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
