"""`--tls-ca sha256:…`: the first connection takes the authority from the server, and accepts no other one."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from typer.testing import CliRunner

from headrace import Client
from headrace.errors import InvalidFieldError, UnreachableError
from headrace.pinned import FOLDER
from headrace.target import Target
from headrace.tls_faults import tls_fault
from headrace_services.identity import authority
from headrace_services.identity.command import ca
from headrace_services.identity.head import fingerprint
from headrace_worker import reach


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The fingerprint of an authority in a folder."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    for name in ("HEADRACE_ADDRESS", "HEADRACE_TOKEN", "HEADRACE_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    authority.make(tmp_path / "ca", ["localhost"], now=datetime.now(UTC))
    return fingerprint(authority.load_signer(tmp_path / "ca"))


@pytest.fixture
def address(tmp_path: Path, known: str) -> Iterator[str]:
    """A gRPC server that shows the authority's certificate."""
    assert known
    found = authority.load(tmp_path / "ca")
    server = grpc.server(ThreadPoolExecutor(1))
    shown = grpc.ssl_server_credentials([(found.server_key_pem, found.server_pem)])
    port = server.add_secure_port("localhost:0", shown)
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()


def test_the_authority_is_fetched_once_and_kept(address: str, known: str, tmp_path: Path) -> None:
    first = Target.of(f"tls://{address}", tls_ca=Path(known))
    kept = tmp_path / "home" / FOLDER / f"{known.removeprefix('sha256:')}.pem"
    assert first.tls_ca == kept
    assert kept.read_bytes() == (tmp_path / "ca" / "ca.pem").read_bytes()
    again = Target.of("tls://localhost:1", tls_ca=Path(known.upper().replace("SHA256", "sha256")))
    assert again.tls_ca == kept, "without a connection"
    with grpc.secure_channel(address, _credentials(first)) as channel:
        grpc.channel_ready_future(channel).result(60)


def test_a_kept_file_that_is_damaged_is_fetched_again(address: str, known: str, tmp_path: Path) -> None:
    kept = tmp_path / "home" / FOLDER / f"{known.removeprefix('sha256:')}.pem"
    kept.parent.mkdir(parents=True)
    kept.write_text("junk")
    assert Target.of(f"tls://{address}", tls_ca=Path(known)).tls_ca == kept
    assert kept.read_bytes() == (tmp_path / "ca" / "ca.pem").read_bytes()


def test_another_authority_is_refused_and_not_kept(
    address: str, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TLS_CA", f"sha256:{'0' * 64}")
    with pytest.raises(InvalidFieldError, match="is not the authority") as caught:
        Target.of(f"tls://{address}")
    assert known in str(caught.value), "what it shows, to compare"
    assert not (tmp_path / "home" / FOLDER).exists()


def test_what_is_no_fingerprint(known: str) -> None:
    with pytest.raises(InvalidFieldError, match="is not a fingerprint"):
        Target.of("tls://localhost:1", tls_ca=Path(known[:-1]))


def test_nobody_answers(known: str) -> None:
    with pytest.raises(UnreachableError, match="cannot be fetched: localhost:1"):
        Target.of("tls://localhost:1", tls_ca=Path(known))


def test_a_worker_waits_for_its_schedulers(
    address: str, known: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As it does with the authority's file."""
    of, tried = Target.of, []

    def away_at_first(*_: object, **options: Path) -> Target:
        tried.append(1)
        return of("tls://localhost:1" if len(tried) < 3 else f"tls://{address}", tls_ca=options["tls_ca"])

    monkeypatch.setattr(reach.Target, "of", away_at_first)
    assert reach.target_of("head", Path(known)).tls_ca is not None
    assert len(tried) == 3
    assert caplog.text.count("trying again") == 1


def test_a_server_that_shows_no_authority_is_told_of(known: str, tmp_path: Path) -> None:
    """Its certificate was made before those that show it."""
    folder = tmp_path / "ca"
    found = authority.load(folder)
    leaf = x509.load_pem_x509_certificate(found.server_pem)
    (folder / authority.SERVER).write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    shown = CliRunner().invoke(ca, ["show", str(folder)])
    assert f"headrace ca server {folder}" in shown.output
    server = grpc.server(ThreadPoolExecutor(1))
    pem = leaf.public_bytes(serialization.Encoding.PEM)
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(found.server_key_pem, pem)]))
    server.start()
    with pytest.raises(InvalidFieldError, match="without the authority's") as caught:
        Target.of(f"tls://localhost:{port}", tls_ca=Path(known))
    assert "headrace ca server" in str(caught.value)
    server.stop(None).wait()


def test_a_foreign_authority_and_another_host_are_told_apart(
    address: str, known: str, tmp_path: Path
) -> None:
    authority.make(tmp_path / "other", ["localhost"], now=datetime.now(UTC))
    with (
        Client(f"tls://{address}", tls_ca=tmp_path / "other" / "ca.pem", connect_timeout_s=0.5) as client,
        pytest.raises(UnreachableError, match="not from the authority that this client trusts") as caught,
    ):
        client.studies()
    assert "--tls-ca" in caught.value.remedy
    elsewhere = address.replace("localhost", "127.0.0.1")
    with (
        Client(f"tls://{elsewhere}", tls_ca=tmp_path / "ca" / "ca.pem", connect_timeout_s=0.5) as client,
        pytest.raises(UnreachableError, match="not for this host") as caught,
    ):
        client.studies()
    assert "--advertise" in caught.value.remedy
    assert known


def test_a_plain_server_is_no_fault_of_the_authority() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("localhost:0")
    server.start()
    with (
        Client(f"tls://localhost:{port}", connect_timeout_s=0.5) as client,
        pytest.raises(UnreachableError, match="does not use TLS"),
    ):
        client.studies()
    server.stop(None).wait()
    assert tls_fault("connection refused") is None


def _credentials(target: Target) -> grpc.ChannelCredentials:
    found = target.credentials()
    assert found is not None
    return found
