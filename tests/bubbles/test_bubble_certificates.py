"""What agents on several machines show each other: a worker's certificate, or nothing if nobody joined."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent_site import join
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from headrace.errors import InvalidFieldError
from headrace.spiffe import WORKERS_HOST
from headrace.v1 import bubble_pb2, bubble_pb2_grpc
from headrace_services.bubble_agent.agent import Agent
from headrace_services.bubble_agent.certificate import OPTIONS, WorkerCertificate
from headrace_services.bubble_agent.neighbours import Neighbours
from headrace_services.identity import authority
from headrace_services.identity.authority import Authority
from headrace_worker import credential

WITHIN_S = 10.0


class Heard(bubble_pb2_grpc.BubbleServiceServicer):
    """Counts the streams that other agents open."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[str] = asyncio.Queue()

    async def ShareProgress(self, requests: Any, context: Any) -> bubble_pb2.ShareProgressResponse:
        self.streams.put_nowait(context.peer())
        async for _ in requests:
            pass
        return bubble_pb2.ShareProgressResponse()


@asynccontextmanager
async def serving(shown: WorkerCertificate | None) -> AsyncIterator[tuple[Heard, str]]:
    server, heard = grpc.aio.server(), Heard()
    bubble_pb2_grpc.add_BubbleServiceServicer_to_server(heard, server)
    where = "127.0.0.1:0"
    port = server.add_insecure_port(where) if shown is None else server.add_secure_port(where, shown.server())
    await server.start()
    try:
        yield heard, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Authority]:
    """Authorities by name, made once."""
    made: dict[str, Authority] = {}

    def named(name: str) -> Authority:
        if name not in made:
            folder = tmp_path_factory.mktemp(name) / "ca"
            authority.make(folder, ["localhost", "127.0.0.1"], now=datetime.now(UTC))
            made[name] = authority.load(folder)
        return made[name]

    return named


async def refused(channel: grpc.aio.Channel) -> bool:
    """Whether a stream to share progress fails for want of a connection."""
    async with channel:
        stub: Any = bubble_pb2_grpc.BubbleServiceStub(channel)
        try:
            await stub.ShareProgress(iter([bubble_pb2.ShareProgressRequest()]), timeout=WITHIN_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return True
    return False


@pytest.mark.parametrize("certified", [False, True])
async def test_an_agent_is_told_over_its_port(
    tmp_path: Path, signer: Callable[[str], Authority], *, certified: bool
) -> None:
    homes = [join(tmp_path / name, signer("ours"), name) for name in ("near", "far")]
    near, far = (WorkerCertificate(home) if certified else None for home in homes)
    async with serving(near) as (heard, address):
        telling = asyncio.create_task(Neighbours(Agent(tmp_path), "far", [address], far).run())
        async with asyncio.timeout(WITHIN_S):
            assert await heard.streams.get()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def test_strangers_are_kept_out_and_trust_no_agent(
    tmp_path: Path, signer: Callable[[str], Authority]
) -> None:
    ours, theirs = signer("ours"), signer("theirs")
    near = WorkerCertificate(join(tmp_path / "near", ours))
    stranger = WorkerCertificate(join(tmp_path / "stranger", theirs))
    ended = WorkerCertificate(join(tmp_path / "ended", ours, ago=timedelta(days=2)))
    without = grpc.ssl_channel_credentials(ours.trusted_pem)
    # A scheduler's own certificate is not valid for a client.
    scheduler = grpc.ssl_channel_credentials(ours.trusted_pem, ours.server_key_pem, ours.server_pem)
    async with serving(near) as (heard, address):
        assert await refused(grpc.aio.insecure_channel(address))
        assert await refused(grpc.aio.secure_channel(address, stranger.channel(), OPTIONS))
        assert await refused(grpc.aio.secure_channel(address, ended.channel(), OPTIONS))
        assert await refused(grpc.aio.secure_channel(address, without, OPTIONS))
        assert await refused(grpc.aio.secure_channel(address, scheduler, OPTIONS))
        # A client that looks for a scheduler, by whatever name, does not accept an agent in its place.
        assert await refused(grpc.aio.secure_channel(address, near.channel()))
        named = (("grpc.ssl_target_name_override", "w"),)
        assert await refused(grpc.aio.secure_channel(address, near.channel(), named))
        assert heard.streams.empty()
        assert not await refused(grpc.aio.secure_channel(address, near.channel(), OPTIONS))


async def test_a_certificate_that_was_renewed_is_shown_from_then_on(
    tmp_path: Path, signer: Callable[[str], Authority]
) -> None:
    near, far = (WorkerCertificate(join(tmp_path / name, signer("ours"))) for name in ("near", "far"))
    options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    async with serving(near) as (_, address):
        assert not await refused(grpc.aio.secure_channel(address, far.channel(), options))
        join(tmp_path / "near", signer("theirs"))
        assert await refused(grpc.aio.secure_channel(address, far.channel(), options))
        join(tmp_path / "far", signer("theirs"))
        assert not await refused(grpc.aio.secure_channel(address, far.channel(), options))
        (tmp_path / "far" / "credential.json").write_text("cut o")  # it continues with what it has
        assert not await refused(grpc.aio.secure_channel(address, far.channel(), options))


def test_a_home_without_a_certificate_to_show_is_refused(
    tmp_path: Path, signer: Callable[[str], Authority]
) -> None:
    def says() -> str:
        with pytest.raises(InvalidFieldError, match="--worker-home") as told:
            WorkerCertificate(tmp_path)
        return str(told.value)

    assert "headrace worker --join" in says()
    (tmp_path / "credential.json").write_text("{}")
    assert "holds no certificate of a worker" in says()
    home = join(tmp_path, signer("ours"))
    assert WorkerCertificate(home)
    held = credential.load(home)
    assert held is not None
    before = x509.load_pem_x509_certificate(held.certificate.encode())
    (home / "credential.json").write_text(
        (home / "credential.json")
        .read_text()
        .replace(held.certificate.replace("\n", "\\n"), _of_a_client(before))
    )
    assert "valid only for clients" in says()


def _of_a_client(shown: x509.Certificate) -> str:
    """A certificate valid only for a client: without a host name."""
    key = credential.new_key()
    uris = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = [name for name in uris if not isinstance(name, x509.DNSName)]
    assert len(names) + 1 == len(list(uris))
    assert WORKERS_HOST in uris.get_values_for_type(x509.DNSName)
    made = (
        x509.CertificateBuilder()
        .subject_name(shown.subject)
        .issuer_name(shown.issuer)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(shown.not_valid_before_utc)
        .not_valid_after(shown.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode().replace("\n", "\\n")
