"""The client over TLS: it trusts the authority that it is given, and no other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from certificates import self_signed
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace import Client, InvalidFieldError
from headrace.errors import UnreachableError
from headrace.v1 import study_pb2_grpc


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, bytes]:
    """A self-signed certificate of `localhost`, as a file, and its key."""
    file, key = self_signed(tmp_path / "ca.pem", "localhost")
    return file, key.read_bytes()


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
