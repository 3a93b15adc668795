"""The authority that a head node makes for itself and keeps: made once, its server's certificate again when needed.

    no ca.pem                      → a new authority, complete before it gets its place
    an authority that has expired  → an error: whoever trusts it must get another, which is people's decision
    a server certificate that is missing, damaged, for other names, of another authority, or ends soon
                                   → a new one; the authority, and so its users and workers, stay

A kill at any line leaves either the old files or the new ones, or a server certificate that the next call replaces.
"""

import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization

from headrace.errors import HeadraceError, InvalidFieldError
from headrace.home import check_own, make_private
from headrace_services.identity import authority
from headrace_services.identity.authority import Authority

RENEWED_BEFORE: Final = timedelta(days=30)
"""A server certificate that ends within this time is replaced."""


def ensured(folder: Path, hosts: Sequence[str], *, now: datetime) -> Authority:
    """The authority in a folder, whose server certificate is for exactly these hosts.

    Raises HeadraceError if the authority has expired, is damaged or is another user's, or the folder cannot be
    written.
    """
    try:
        if not (folder / authority.CERTIFICATE).exists() and not (folder / authority.KEY).exists():
            _make(folder, hosts, now)
        check_own(
            folder,
            "the certificate authority",
            remedy=f"Whoever wrote its key can make certificates. Move it away: `mv {folder} {folder}.old`.",
        )
        _check(folder, now)
        if not _serves(folder, hosts, now):
            authority.make_server(folder, hosts, now=now)
        return authority.load(folder)
    except OSError as error:
        raise HeadraceError(
            f"the certificate authority in {folder} cannot be kept: {error.strerror or error}.",
            remedy="Make the folder writable for this user, or give another --home.",
        ) from error


def fingerprint(certificate: x509.Certificate) -> str:
    """What `--tls-ca` takes instead of a file: `sha256:HEX`."""
    return f"sha256:{certificate.fingerprint(hashes.SHA256()).hex()}"


def _make(folder: Path, hosts: Sequence[str], now: datetime) -> None:
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    make_private(folder.parent)
    authority.make(new, hosts, now=now)
    new.rename(folder)


def _check(folder: Path, now: datetime) -> None:
    try:
        found = authority.load_signer(folder)
    except InvalidFieldError as error:
        (found_wrong,) = error.violations
        raise _unusable(folder, f"{found_wrong.value} {found_wrong.message}") from error
    if found.not_valid_after_utc <= now:
        raise _unusable(folder, f"it expired on {found.not_valid_after_utc:%Y-%m-%d}")


def _unusable(folder: Path, why: str) -> HeadraceError:
    return HeadraceError(
        f"the certificate authority in {folder} cannot be used: {why}.",
        remedy=f"Restore the folder from a copy, or move it away: `mv {folder} {folder}.old`. The next start then "
        "makes a new authority; users log in again, and workers join again.",
    )


def _serves(folder: Path, hosts: Sequence[str], now: datetime) -> bool:
    """Whether the server certificate can stay."""
    try:
        shown = x509.load_pem_x509_certificate((folder / authority.SERVER).read_bytes())
        key = serialization.load_pem_private_key((folder / authority.SERVER_KEY).read_bytes(), None)
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        shown.verify_directly_issued_by(authority.load_signer(folder))
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (
        shown.public_key() == key.public_key()
        and set(names) == set(authority.names_of(hosts))
        and shown.not_valid_after_utc > now + RENEWED_BEFORE
    )
