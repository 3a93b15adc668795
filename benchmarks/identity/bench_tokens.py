"""What a token costs a call, what TLS costs it, and whether the time of a comparison reveals anything about the
secret.

Client and server share a process, and the method does nothing, so the differences count, not the times themselves.
They are processor times. Other programs can only lengthen them, so the fastest tenth of the rounds counts.

    python benchmarks/identity/bench_tokens.py [--calls 25] [--rounds 200]
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tests" / "client"))

from certificates import self_signed

from headrace.v1 import study_pb2, study_pb2_grpc
from headrace_services.identity.gate import Gate
from headrace_services.identity.known import KnownTokens, StoredToken
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token, digest_of, is_same, new_token
from headrace_services.scheduler.rpc.interceptors import make_server_interceptors
from headrace_services.serving.admission import AdmissionInterceptor

METHOD = "/headrace.v1.StudyService/GetStudy"


class Table:
    """One token, in memory."""

    def __init__(self, token: Token) -> None:
        self._token = token

    async def find(self, token_id: str) -> StoredToken | None:
        """The row."""
        return StoredToken(
            id=token_id, digest=self._token.digest, name="n", project="p", role=Role.EDITOR,
            revoked=False, left_s=None, note_use=False,
        )  # fmt: skip

    async def note_use(self, token_id: str) -> None:
        """Records nothing."""


class Nothing(study_pb2_grpc.StudyServiceServicer):
    """Answers immediately."""

    async def GetStudy(self, request: Any, context: Any) -> study_pb2.GetStudyResponse:  # noqa: ARG002, N802
        """Returns an empty study."""
        return study_pb2.GetStudyResponse()


async def served(
    stack: AsyncExitStack, gate: Gate | None, pair: tuple[bytes, bytes] | None
) -> grpc.aio.Channel:
    """A server whose method answers immediately, and a channel to it."""
    server = grpc.aio.server(interceptors=make_server_interceptors(AdmissionInterceptor(gate)))
    study_pb2_grpc.add_StudyServiceServicer_to_server(Nothing(), server)
    if pair is None:
        port = server.add_insecure_port("localhost:0")
        channel = grpc.aio.insecure_channel(f"localhost:{port}")
    else:
        port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair]))
        channel = grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(pair[1]))
    await server.start()
    stack.push_async_callback(server.stop, 0)
    return await stack.enter_async_context(channel)


async def calls(options: argparse.Namespace) -> dict[str, list[float]]:
    """Processor microseconds per call, by kind; the kinds take turns."""
    token = new_token()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = self_signed(Path(folder) / "c.pem", "localhost")
        pair = key.read_bytes(), certificate.read_bytes()
        async with AsyncExitStack() as stack:
            kinds = {
                f"{'TLS' if tls else 'plain'}{', token' if gate else ''}": await served(
                    stack, gate, pair if tls else None
                )
                for tls in (False, True)
                for gate in (None, Gate(KnownTokens(Table(token))))
            }
            header = (("authorization", f"Bearer {token.text}"),)
            for _ in range(options.rounds + 1):  # the first one is a warm-up
                for kind, channel in kinds.items():
                    call = study_pb2_grpc.StudyServiceStub(channel).GetStudy
                    metadata = header if kind.endswith("token") else None
                    began = time.process_time()
                    for _ in range(options.calls):
                        await call(study_pb2.GetStudyRequest(name="studies/s"), metadata=metadata)
                    found.setdefault(kind, []).append((time.process_time() - began) / options.calls * 1e6)
    return {kind: took[1:] for kind, took in found.items()}


async def gate_alone(rounds: int) -> float:
    """Microseconds that the gate takes for a cached token."""
    token = new_token()
    gate, header = Gate(KnownTokens(Table(token))), (("authorization", f"Bearer {token.text}"),)
    took = []
    for _ in range(rounds):
        began = time.process_time()
        for _ in range(1_000):
            await gate.admit(METHOD, header)
        took.append((time.process_time() - began) / 1_000 * 1e6)
    return fast(took)


def comparing(rounds: int) -> dict[str, float]:
    """Nanoseconds of a comparison of digests, by the position of the first differing byte."""
    stored = digest_of("stored")
    others = {
        "equal": stored,
        "first byte": bytes([stored[0] ^ 1]) + stored[1:],
        "last byte": stored[:-1] + bytes([stored[-1] ^ 1]),
        "every byte": bytes(byte ^ 255 for byte in stored),
    }
    took: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(rounds):
        for name, other in others.items():
            began = time.process_time_ns()
            for _ in range(2_000):
                is_same(other, stored)
            took[name].append((time.process_time_ns() - began) / 2_000)
    return {name: fast(each) for name, each in took.items()}


def fast(took: list[float]) -> float:
    """The time that a tenth of the rounds did not exceed."""
    return sorted(took)[len(took) // 10]


def main() -> None:
    """Prints one line per kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=25, help="of each kind and round")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    for kind, took in asyncio.run(calls(options)).items():
        print(f"{kind:13} {fast(took):7.1f} µs a call (median {statistics.median(took):.1f})")
    print(f"the gate      {asyncio.run(gate_alone(options.rounds)):7.1f} µs")
    for name, took_ns in comparing(options.rounds).items():
        print(f"compare, {name + ' differs' if name != 'equal' else name:20} {took_ns:6.1f} ns")


if __name__ == "__main__":
    main()
