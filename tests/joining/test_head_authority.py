"""The authority that a head node keeps for itself: what stays, what is made again, and what is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from headrace.errors import HeadraceError
from headrace_services.identity import authority
from headrace_services.identity.head import ensured, fingerprint

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTS = ["head.internal", "10.0.0.5"]
FILES = ("ca.pem", "ca.key", "server.pem", "server.key")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ensured(tmp_path / "ca", HOSTS, now=NOW)
    return tmp_path / "ca"


def test_nothing_changes_while_everything_is_right(folder: Path) -> None:
    before = contents(folder)
    ensured(folder, list(reversed(HOSTS)), now=NOW + timedelta(days=3000))
    assert contents(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["ca"]


def test_another_address_changes_the_servers_certificate_alone(folder: Path) -> None:
    before = contents(folder)
    found = ensured(folder, [*HOSTS, "10.0.0.6"], now=NOW)
    after = contents(folder)
    assert {name for name in FILES if before[name] != after[name]} == {"server.pem", "server.key"}
    leaf, shown = x509.load_pem_x509_certificates(found.server_pem)
    assert shown == found.certificate, "clients that know its fingerprint find it"
    leaf.verify_directly_issued_by(found.certificate)


def test_the_servers_certificate_is_renewed_before_it_ends(tmp_path: Path) -> None:
    authority.make(tmp_path / "ca", HOSTS, now=NOW)
    authority.make_server(tmp_path / "ca", HOSTS, now=NOW - timedelta(days=3650 - 29))
    before = contents(tmp_path / "ca")
    ensured(tmp_path / "ca", HOSTS, now=NOW)
    after = contents(tmp_path / "ca")
    assert {name for name in FILES if before[name] != after[name]} == {"server.pem", "server.key"}


@pytest.mark.parametrize("name", ["server.pem", "server.key"])
@pytest.mark.parametrize("damage", [None, b"", b"junk"])
def test_a_damaged_server_certificate_is_made_again(folder: Path, name: str, damage: bytes | None) -> None:
    """A kill between its two files leaves one of them from before."""
    known = fingerprint(authority.load_signer(folder))
    (folder / name).unlink()
    if damage is not None:
        (folder / name).write_bytes(damage)
    assert fingerprint(ensured(folder, HOSTS, now=NOW).certificate) == known


def test_a_server_certificate_of_another_authority_is_made_again(folder: Path, tmp_path: Path) -> None:
    authority.make(tmp_path / "other", HOSTS, now=NOW)
    for name in ("server.pem", "server.key"):
        (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
    found = ensured(folder, HOSTS, now=NOW)
    x509.load_pem_x509_certificate(found.server_pem).verify_directly_issued_by(found.certificate)


def test_one_that_was_killed_while_it_was_made_is_made_whole(tmp_path: Path) -> None:
    half = tmp_path / "ca.new"
    half.mkdir()
    (half / "ca.key").write_text("half")
    ensured(tmp_path / "ca", HOSTS, now=NOW)
    assert {path.name for path in (tmp_path / "ca").iterdir()} == set(FILES)


def test_an_authority_that_has_expired_is_refused_and_kept(folder: Path) -> None:
    before = contents(folder)
    with pytest.raises(HeadraceError, match="it expired on 2036-02-27") as caught:
        ensured(folder, HOSTS, now=NOW + timedelta(days=3651))
    assert f"mv {folder}" in caught.value.remedy
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["ca.pem", "ca.key"])
@pytest.mark.parametrize("damage", [None, b"junk"])
def test_a_damaged_authority_is_refused(folder: Path, name: str, damage: bytes | None) -> None:
    (folder / name).unlink()
    if damage is not None:
        (folder / name).write_bytes(damage)
    with pytest.raises(HeadraceError, match=f"cannot be used: {folder / name}") as caught:
        ensured(folder, HOSTS, now=NOW)
    assert "Restore the folder" in caught.value.remedy


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadraceError, match="cannot be kept") as caught:
        ensured(tmp_path / "file" / "ca", HOSTS, now=NOW)
    assert "--home" in caught.value.remedy
