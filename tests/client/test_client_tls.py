"""The client over TLS: the authority it is told to trust, and none other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace import Client, InvalidFieldError
from headrace.errors import UnreachableError
from headrace.v1 import study_pb2_grpc


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, bytes]:
    """A self-signed certificate of `localhost`, as a file, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path / "ca.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return file, secret


@pytest.fixture
def address(fake: FakeStudyService, script: Script, certificate: tuple[Path, bytes]) -> Iterator[str]:
    """The scripted service behind TLS."""
    fake.add(script)
    file, key = certificate
    server = grpc.server(ThreadPoolExecutor(4))
    study_pb2_grpc.add_StudyServiceServicer_to_server(fake, server)
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, file.read_bytes())]))
    server.start()
    yield f"localhost:{port}"
    server.stop(None).wait()


def test_a_trusted_authority(
    address: str, certificate: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TLS_CA", str(certificate[0]))
    with Client(f"tls://{address}", connect_timeout_s=5) as client:
        assert client.study("digits").status().name == "digits"


def test_an_authority_that_nobody_knows(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_TLS_CA", raising=False)
    with (
        Client(f"tls://{address}", connect_timeout_s=0.5) as client,
        pytest.raises(UnreachableError) as caught,
    ):
        client.studies()
    assert address in caught.value.message


def test_an_authority_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TLS_CA", "/no/such/file.pem")
    with pytest.raises(InvalidFieldError, match="HEADRACE_TLS_CA"):
        Client("tls://localhost:1")
