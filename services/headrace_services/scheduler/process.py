"""The scheduler's process: connect, migrate, serve, drain.

Start: the database is reached and migrated before the port opens, or the process ends with one clear line.
End (SIGTERM, SIGINT): health says NOT_SERVING, workers are told to go elsewhere, inputs that were taken are
committed and answered, then the server closes. A second signal, or the end of the grace, ends it at once;
that loses nothing either.
"""

import asyncio
import gc
import ipaddress
import logging
import random
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import DatabaseUnavailableError, HeadraceError, InvalidFieldError, Violation
from headrace.target import PEM
from headrace.v1 import code_pb2, code_pb2_grpc, study_pb2, study_pb2_grpc, worker_pb2, worker_pb2_grpc
from headrace_services.instance import tell_instance
from headrace_services.scheduler.desk import Desk
from headrace_services.scheduler.engine.cleaner import Cleaner
from headrace_services.scheduler.engine.followers import Followers
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.sweeper import Sweeper
from headrace_services.scheduler.loop_watch import LoopWatch
from headrace_services.scheduler.rpc.code_service import CodeServicer
from headrace_services.scheduler.rpc.interceptors import make_server_interceptors
from headrace_services.scheduler.rpc.study_service import StudyServicer
from headrace_services.scheduler.session.heartbeats import Heartbeats
from headrace_services.scheduler.session.loads import Loads
from headrace_services.scheduler.session.registry import Registry
from headrace_services.scheduler.session.servicer import WorkerServicer
from headrace_services.scheduler.session.worker_session import Timing
from headrace_services.scheduler.store.database import is_away, open_engine
from headrace_services.scheduler.store.migrate import migrate
from headrace_services.scheduler.suggesting.pool import Pool
from headrace_services.scheduler.suggesting.suggester import Suggester

log = logging.getLogger(__name__)

CONNECTION_AGE_S = 30 * 60
"""Clients' connections end about this often, so that they spread over the replicas again. Workers are asked to go
sooner, by their sessions (`Timing.stream_age_s`)."""

SETTLING_S = (5.0, 10.0, 15.0, 30.0, 60.0)
"""Pauses after the start, while code is imported, statements are compiled and workers connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run a scheduler."""

    database_url: str
    listen: str = "127.0.0.1:7440"
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timing: Timing = field(default_factory=Timing)
    drain_grace_s: float = 10.0
    sampler_processes: int = 2
    """How many processes make proposals; they start when a study first asks for one."""
    proposal_limit_s: float = 120.0
    """How long one attempt at a proposal may take."""


def check(settings: Settings) -> None:
    """Refuse settings that cannot work or are not safe. Raises InvalidFieldError."""
    problems = []
    host, _, port = settings.listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        problems.append(
            _problem("--listen", settings.listen, "is not HOST:PORT", "Write, for example, 127.0.0.1:7440.")
        )
    elif not settings.tls_cert and not settings.insecure and not is_loopback(host):
        problems.append(
            _problem(
                "--listen",
                settings.listen,
                "would serve other machines without TLS",
                "Give --tls-cert and --tls-key, or say --insecure if the network is trusted.",
            )
        )
    if (settings.tls_cert is None) != (settings.tls_key is None):
        problems.append(_problem("--tls-cert", "", "needs --tls-key, and the other way round", "Give both."))
    if settings.timing.lease_ttl_s < 2 * settings.timing.heartbeat_s:
        problems.append(
            _problem(
                "--lease-ttl",
                f"{settings.timing.lease_ttl_s:g} s",
                f"is shorter than two heartbeats of {settings.timing.heartbeat_s:g} s",
                "Make it at least three times --heartbeat-interval, so that one lost heartbeat ends no lease.",
            )
        )
    if problems:
        raise InvalidFieldError(problems)


def _problem(field_name: str, value: str, message: str, remedy: str) -> Violation:
    return Violation(field=field_name, value=value, message=message, remedy=remedy)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def serve(settings: Settings) -> None:
    """Run a scheduler until it is told to stop. Raises HeadraceError where it cannot start."""
    check(settings)
    engine = open_engine(settings.database_url)
    try:
        await _prepare(engine)
        await _serve(engine, settings)
    finally:
        await engine.dispose()


async def _prepare(engine: AsyncEngine) -> None:
    """Reach and migrate the database."""
    where = engine.url.render_as_string(hide_password=True)
    try:
        async with engine.connect() as conn:
            await conn.execute(text("SELECT 1"))
        await migrate(engine)
    except Exception as error:
        if not is_away(error):
            raise
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        raise DatabaseUnavailableError(
            f"cannot reach Postgres at {where}: {reason}",
            remedy="Start the database or correct --database-url.",
        ) from error


async def _serve(engine: AsyncEngine, settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server, port = _bound_server(settings)
    async with asyncio.TaskGroup() as tasks:
        hub = Hub(engine, tasks)
        registry = Registry(engine)
        heartbeats = Heartbeats(engine, settings.timing.lease_ttl_s)
        loads = Loads(engine)
        hub.deliver_with(registry.deliver)
        desk = Desk()
        pool = Pool(settings.sampler_processes, limit_s=settings.proposal_limit_s)
        suggester = Suggester(hub, pool, tasks)
        hub.propose_with(suggester.want)
        health = health_aio.HealthServicer()
        await tell_instance(health)
        workers = WorkerServicer(hub, heartbeats, loads, registry, settings.timing)
        _add_services(server, StudyServicer(hub, desk), workers, CodeServicer(engine), health)
        await server.start()
        watch = LoopWatch()
        background = [
            tasks.create_task(watch.run()),
            tasks.create_task(_freeze_survivors()),
            tasks.create_task(hub.run_waking()),
            tasks.create_task(heartbeats.run()),
            tasks.create_task(loads.run()),
            tasks.create_task(registry.run_notifying()),
            tasks.create_task(registry.run_listening()),
            tasks.create_task(Followers(hub, tasks).run()),
            tasks.create_task(Sweeper(hub, settings.timing.lease_ttl_s).run()),
            tasks.create_task(Cleaner(engine).run()),
            tasks.create_task(suggester.run()),
        ]
        gc.collect()
        gc.freeze()
        host = settings.listen.rpartition(":")[0]
        print(f"headrace scheduler: serving on {host}:{port}", flush=True)  # what starters wait for
        await stop.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, sys.exit, 130)
        await _drain(server, hub, registry, health, settings.drain_grace_s)
        log.info("%s", watch)
        for task in background:
            task.cancel()
        suggester.close()
        await desk.close()


async def _freeze_survivors() -> None:
    """Exclude from later garbage collections what the start and the first streams have made: it stays to the end.

    With hundreds of streams a collection that looks at all of it stops the event loop for 50 to 100 ms.
    """
    for pause_s in SETTLING_S:
        await asyncio.sleep(pause_s)
        gc.collect(1)  # what is old already and garbage is lost to the collections; it is little
        gc.freeze()


async def _drain(
    server: grpc.aio.Server, hub: Hub, registry: Registry, health: health_aio.HealthServicer, grace_s: float
) -> None:
    log.info("draining")
    await health.enter_graceful_shutdown()
    registry.drain()
    try:
        async with asyncio.timeout(grace_s):
            await hub.drain()
    except TimeoutError:
        log.warning("the database did not take everything in %s s; the senders keep it", grace_s)
    await server.stop(grace=min(2.0, grace_s))


def _bound_server(settings: Settings) -> tuple[grpc.aio.Server, int]:
    age_ms = int(CONNECTION_AGE_S * 1000 * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
    server = grpc.aio.server(
        interceptors=make_server_interceptors(),
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.max_connection_age_ms", age_ms),
            ("grpc.max_connection_age_grace_ms", 30_000),
            ("grpc.max_receive_message_length", 4 * 1024 * 1024),
        ],
    )
    return server, _bind(server, settings)


def _add_services(
    server: grpc.aio.Server,
    studies: StudyServicer,
    workers: WorkerServicer,
    code: CodeServicer,
    health: health_aio.HealthServicer,
) -> None:
    study_pb2_grpc.add_StudyServiceServicer_to_server(studies, server)
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(workers, server)
    code_pb2_grpc.add_CodeServiceServicer_to_server(code, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [
        study_pb2.DESCRIPTOR.services_by_name["StudyService"].full_name,
        worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name,
        code_pb2.DESCRIPTOR.services_by_name["CodeService"].full_name,
        health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
    ]
    reflection.enable_server_reflection([*names, reflection.SERVICE_NAME], server)


def _bind(server: grpc.aio.Server, settings: Settings) -> int:
    try:
        if settings.tls_cert and settings.tls_key:
            pair = (PEM.bytes(settings.tls_key), PEM.bytes(settings.tls_cert))
            port = server.add_secure_port(settings.listen, grpc.ssl_server_credentials([pair]))
        else:
            port = server.add_insecure_port(settings.listen)
    except (OSError, RuntimeError) as error:
        port, reason = 0, str(error)
    else:
        reason = "the address is in use"
    if not port:
        raise HeadraceError(
            f"cannot listen on {settings.listen}: {reason}", remedy="Choose another --listen."
        )
    return port
