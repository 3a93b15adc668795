"""What strangers do to a scheduler's memory, and how it affects honest callers.

Each attack has a fresh scheduler that requires tokens. Beside it one client repeatedly checks the health, asks who
it is, and reconnects. `held` is measured three seconds after the attack, with its connections open.

    python benchmarks/identity/bench_strangers.py [--tls] [--only WORD]
"""

import argparse
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [
    str(ROOT / "tests" / "client"),
    str(ROOT / "tests" / "identity"),
    str(ROOT / "benchmarks" / "scheduler"),
]

from benchmark_site import postgres, scheduler  # noqa: E402  their folders are on the path from here on
from certificates import self_signed  # noqa: E402  as above
from strangers import ATTACKS, MIB, Crowd  # noqa: E402  as above

from headrace.v1 import identity_pb2, identity_pb2_grpc  # noqa: E402  as above


@dataclass(slots=True)
class Seen:
    """The observations of one attack."""

    base: int
    peak: int = 0
    waited_s: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    over: bool = False


class Honest:
    """A client with a token."""

    def __init__(self, address: str, token: str, ca: bytes | None) -> None:
        self._address = address
        self._credentials = None if ca is None else grpc.ssl_channel_credentials(ca)
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._channel = self._connect()

    def call(self, seen: Seen) -> None:
        """A check, a call with a token, and a check over a new connection."""
        fresh = self._connect()
        for ask in (lambda: self._check(self._channel), self._who_am_i, lambda: self._check(fresh)):
            began = time.monotonic()
            try:
                ask()
            except grpc.RpcError as error:
                seen.failed[error.code().name] += 1
            seen.waited_s.append(time.monotonic() - began)
        fresh.close()

    def _connect(self) -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self._credentials is None:
            return grpc.insecure_channel(self._address, options)
        return grpc.secure_channel(self._address, self._credentials, options)

    def _check(self, channel: grpc.Channel) -> None:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)

    def _who_am_i(self) -> None:
        stub = identity_pb2_grpc.IdentityServiceStub(self._channel)
        stub.WhoAmI(identity_pb2.WhoAmIRequest(), timeout=10, metadata=self._metadata)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| strangers | peak, MB | held, MB | honest p50 | p99 | greatest | failed |", flush=True)
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as folder, postgres() as url:
        token = _token(url)
        certificate = self_signed(Path(folder) / "server.pem", "127.0.0.1") if options.tls else None
        for name in ATTACKS:
            if options.only in name:
                _attacked(name, url, token, certificate)


def _token(url: str) -> str:
    headrace = [sys.executable, "-m", "headrace.cli"]
    subprocess.run([*headrace, "migrate", "--database-url", url], check=True, capture_output=True)
    command = [*headrace, "token", "create", "--role", "admin", "--database-url", url]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"hr_\S{50,}", said.stdout + said.stderr)
    assert found is not None, said
    return found[0]


def _attacked(name: str, url: str, token: str, certificate: tuple[Path, Path] | None) -> None:
    asks = ("--auth", "tokens", "--insecure")
    ca, tls = None, None
    if certificate is not None:
        asks = ("--auth", "tokens", "--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))
        ca, tls = certificate[0].read_bytes(), ssl.create_default_context(cafile=str(certificate[0]))
        tls.set_alpn_protocols(["h2"])
    with scheduler(url, *asks) as (address, process):
        honest, crowd = Honest(address, token, ca), Crowd(address, tls)
        warm = Seen(base=0)
        for _ in range(20):
            honest.call(warm)
        seen = Seen(base=process.memory_info().rss)
        watching = [
            threading.Thread(target=_measure, args=(process, seen)),
            threading.Thread(target=_call, args=(honest, seen)),
        ]
        for one in watching:
            one.start()
        ATTACKS[name](crowd)
        time.sleep(3)  # what remains when everything has settled: `held`
        held = process.memory_info().rss - seen.base
        seen.over = True
        for one in watching:
            one.join()
        crowd.leave()
    waited = sorted(seen.waited_s)
    p50, p99, greatest = (waited[len(waited) * part // 1000] * 1e3 for part in (500, 990, 999))
    failed = ", ".join(f"{count} {code}" for code, count in seen.failed.items()) or "none"
    row = f"| {name} | {(seen.peak - seen.base) / MIB:.0f} | {held / MIB:.0f} "
    print(f"{row}| {p50:.1f} ms | {p99:.0f} ms | {greatest:.0f} ms | {failed} of {len(waited)} |", flush=True)


def _measure(process: psutil.Process, seen: Seen) -> None:
    while not seen.over:
        seen.peak = max(seen.peak, process.memory_info().rss)
        time.sleep(0.02)  # a sample of the peak every 20 ms


def _call(honest: Honest, seen: Seen) -> None:
    while not seen.over:
        honest.call(seen)
        time.sleep(0.05)  # an honest client is no load by itself


if __name__ == "__main__":
    main()
