"""The planner's process: bind, serve, drain. It needs no database and no other service."""

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.bounds.edge import BoundsInterceptor
from headrace.errors import InvalidFieldError, Violation
from headrace.scraping import parse_listen, scraped
from headrace.target import PEM, Target
from headrace.v1 import planner_pb2, planner_pb2_grpc
from headrace_services import reflecting
from headrace_services.identity.gate import Gate
from headrace_services.identity.listening import asks_for_tokens, at_one_address, is_loopback
from headrace_services.identity.open_streams import ASKED_AGAIN_S
from headrace_services.identity.roles import Auth
from headrace_services.instance import tell_instance
from headrace_services.monitoring.calls import MeasuringInterceptor
from headrace_services.monitoring.registry import REGISTRY
from headrace_services.planner.service.pool import Pool
from headrace_services.planner.service.servicer import PlannerServicer
from headrace_services.planner.service.whose import SchedulersTokens
from headrace_services.serving.admission import AdmissionInterceptor
from headrace_services.serving.health import Health
from headrace_services.serving.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run a planner."""

    listen: str = "127.0.0.1:7441"
    workers: int = 2
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    auth: Auth | None = None
    """Whether calls need a token; None: if other machines reach it over TLS."""
    scheduler: str = ""
    """The address of the scheduler that knows the tokens."""
    drain_grace_s: float = 5.0
    metrics_listen: str = ""
    """Where to expose metrics; empty: nowhere."""


def check(settings: Settings) -> None:
    """Reject settings that cannot work or are not safe. Raises InvalidFieldError."""
    host, _, port = settings.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise _fault("--listen", settings.listen, "is not HOST:PORT", "Write, for example, 127.0.0.1:7441.")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise _fault("--tls-cert", "", "needs --tls-key, and the other way round", "Give both.")
    if not settings.tls_cert and not settings.insecure and not is_loopback(host):
        remedy = "Give --tls-cert and --tls-key, or use --insecure if the network is trusted."
        raise _fault("--listen", settings.listen, "would serve other machines without TLS", remedy)
    if _asks_for_tokens(settings):
        if not settings.scheduler:
            remedy = "Name the scheduler that knows the tokens, as tls://HOST:7440, or use --auth none."
            raise _fault("--scheduler", "", "is required where calls need a token", remedy)
        Target.of(settings.scheduler, field="--scheduler", token="tried").credentials()  # noqa: S106  # no secret
    if settings.metrics_listen:
        parse_listen(settings.metrics_listen)
    if same := at_one_address({"--listen": settings.listen, "--metrics-listen": settings.metrics_listen}):
        raise InvalidFieldError(same)


async def serve(settings: Settings) -> None:
    """Run until told to stop. Raises HeadraceError if it cannot start."""
    check(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with scraped(settings.metrics_listen, REGISTRY) as shown:
        await _serve(settings, stop, shown)


async def _serve(settings: Settings, stop: asyncio.Event, shown: str) -> None:
    async with Pool(settings.workers) as pool:
        health = Health()
        tell_instance(health)
        gate = Gate(SchedulersTokens(settings.scheduler)) if _asks_for_tokens(settings) else None
        server = make_server(pool, health, gate)
        port = server.bind("--listen", settings.listen, _credentials(settings))
        await server.start()
        host = settings.listen.rpartition(":")[0]
        print(f"headrace planner: serving on {host}:{port}", flush=True)  # launchers wait for this line
        if shown:
            print(f"headrace planner: metrics at http://{shown}/metrics", flush=True)
        await stop.wait()
        health.leave()
        await server.stop(settings.drain_grace_s)


def make_server(
    pool: Pool, health: Health, gate: Gate | None = None, *, asked_again_s: float = ASKED_AGAIN_S
) -> Server:
    """A server with the planner, health and reflection, not yet bound; without a gate it requires no token. For
    open streams, the gate is asked again at this interval in seconds."""
    admission = AdmissionInterceptor(gate, asked_again_s=asked_again_s)
    interceptors = (admission, MeasuringInterceptor(), BoundsInterceptor())
    serving = Server(interceptors, admission.connections)
    server = serving.grpc
    planner_pb2_grpc.add_PlannerServiceServicer_to_server(PlannerServicer(pool), server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [
        planner_pb2.DESCRIPTOR.services_by_name["PlannerService"].full_name,
        health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    ]
    reflecting.enable(names, server)
    return serving


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    if not (settings.tls_cert and settings.tls_key):
        return None
    return grpc.ssl_server_credentials([(PEM.bytes(settings.tls_key), PEM.bytes(settings.tls_cert))])


def _asks_for_tokens(settings: Settings) -> bool:
    return asks_for_tokens(settings.auth, settings.listen, tls=settings.tls_cert is not None)


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
