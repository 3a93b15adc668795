"""A certificate authority that is known by its fingerprint: `--tls-ca sha256:HEX` instead of a file.

A scheduler with an authority of Headrace shows it beside its own certificate. The first connection takes it from there
and compares it with the fingerprint, which came to the user by another way; from then on a copy in the home,
`authorities/HEX.pem`, is used like any file. Nothing but that comparison is trusted in the first connection, and
nothing secret is sent over it.
"""

import hashlib
import re
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from headrace.durable import replace
from headrace.errors import HeadraceError, InvalidFieldError, UnreachableError, Violation
from headrace.home import home_dir, make_private

_PREFIX: Final = "sha256:"
_FINGERPRINT: Final = re.compile(r"[0-9a-f]{64}")
_CONNECT_S: Final = 5.0
_DER: Final = 2
"""`_ssl.ENCODING_DER`."""
FOLDER: Final = "authorities"


class AuthorityAwayError(UnreachableError):
    """No server answers that would show the authority."""


def authority_file(tls_ca: Path, replicas: Sequence[str]) -> Path:
    """The file of an authority: `tls_ca` itself, unless it is a fingerprint.

    Raises InvalidFieldError for a fingerprint that is none, or that is not of an authority that a server shows, and
    AuthorityAwayError if no server answers.
    """
    text = str(tls_ca)
    if not text.startswith(_PREFIX):
        return tls_ca
    wanted = text.removeprefix(_PREFIX).replace(":", "").lower()
    if not _FINGERPRINT.fullmatch(wanted):
        raise _fault(text, "is not a fingerprint", "It has 64 digits: `headrace ca show DIR` prints it.")
    file = home_dir() / FOLDER / f"{wanted}.pem"
    if _kept(file, wanted):
        return file
    shown: list[str] = []
    trouble = "no address was given"
    for replica in replicas:
        try:
            certificates = _shown(replica)
        except (OSError, ValueError) as error:
            trouble = f"{replica}: {error}"
            continue
        found = {_digest(der): der for der in certificates}
        if wanted in found:
            _keep(file, found[wanted])
            return file
        if len(found) == 1:
            raise _fault(
                text,
                f"cannot be compared: {replica} shows its own certificate without the authority's",
                "Its certificate is an old one: run `headrace ca server DIR HOST…` where the authority is, and restart "
                "the schedulers. Or give the authority's file, ca.pem.",
            )
        shown = [f"{replica} shows {_PREFIX}{digest}" for digest in list(found)[-1:]]
    if shown:
        raise _fault(
            text,
            f"is not the authority of the scheduler: {shown[0]}",
            "Copy the fingerprint again, from where the scheduler was started. If it is right, somebody else answers "
            "at that address.",
        )
    raise AuthorityAwayError(
        f"The certificate authority {text} cannot be fetched: {trouble}.",
        remedy="Start the scheduler, correct its address, or give the authority's file, ca.pem, with --tls-ca.",
    )


def _shown(replica: str) -> list[bytes]:
    """The certificates that a server shows, in DER. Raises OSError."""
    host, _, port = replica.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the fingerprint decides
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S) as raw,
        context.wrap_socket(raw, server_hostname=host.strip("[]")) as line,
    ):
        if sys.version_info >= (3, 13):
            return line.get_unverified_chain()
        chain = line._sslobj.get_unverified_chain() or ()  # type: ignore[attr-defined]  # public from 3.13 on
        return [one.public_bytes(_DER) for one in chain]


def _kept(file: Path, wanted: str) -> bool:
    try:
        return _digest(ssl.PEM_cert_to_DER_cert(file.read_text("ascii"))) == wanted
    except (OSError, ValueError):
        return False


def _keep(file: Path, der: bytes) -> None:
    try:
        make_private(file.parent)
        replace(file, ssl.DER_cert_to_PEM_cert(der).encode())
    except OSError as error:
        raise HeadraceError(
            f"The certificate authority cannot be kept in {file.parent}: {error.strerror or error}.",
            remedy="Set HEADRACE_HOME to a folder that you can write.",
        ) from error


def _digest(der: bytes) -> str:
    return hashlib.sha256(der).hexdigest()


def _fault(value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field="--tls-ca", value=value, message=message, remedy=remedy)])
