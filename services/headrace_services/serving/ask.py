"""Whether a server on this machine serves: for the probes of a container, which gRPC's own kind cannot make over TLS.

    python -m headrace_services.serving.ask PORT [CA_FILE HOST]

Exits with 0 if the standard health check answers SERVING. `HOST` is one that the server's certificate is for: the
probe connects to 127.0.0.1, which need not be one of them.
"""

import sys
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

DEADLINE_S: Final = 5.0


def serves(port: int, ca: Path | None = None, host: str = "") -> bool:
    """Whether the server at a port answers SERVING; over TLS with an authority and a host."""
    address, options = f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)]
    if ca is None:
        channel = grpc.insecure_channel(address, options)
    else:
        trusted = grpc.ssl_channel_credentials(ca.read_bytes())
        channel = grpc.secure_channel(address, trusted, [*options, ("grpc.ssl_target_name_override", host)])
    with channel:
        check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # not in its stubs
        try:
            answer = check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        except grpc.RpcError as error:
            print(error, file=sys.stderr)
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def main(arguments: list[str]) -> int:
    """The exit status."""
    port, *tls = arguments
    if tls:
        return not serves(int(port), Path(tls[0]), tls[1])
    return not serves(int(port))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
