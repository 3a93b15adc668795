"""The scheduler's process: connect, migrate, serve, drain.

Start: the database is reached and migrated before the port opens (`preparing`).

End (SIGTERM, SIGINT): health is NOT_SERVING, workers are asked to connect elsewhere, accepted inputs are committed and
answered, then the server closes. A second signal, or the end of the grace, ends it at once; that loses nothing either.
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.ages import Ages
from headrace.errors import InvalidFieldError, Violation
from headrace.protocol import SPOKEN
from headrace.scraping import parse_listen, scraped
from headrace.target import PEM
from headrace.v1 import study_pb2
from headrace_services.identity.gate import Gate
from headrace_services.identity.known import KnownTokens
from headrace_services.identity.lifetimes import WORKER_LIVES
from headrace_services.identity.listening import asks_for_tokens, at_one_address, is_loopback
from headrace_services.identity.roles import Auth
from headrace_services.instance import tell_instance
from headrace_services.monitoring.registry import REGISTRY
from headrace_services.scheduler.analysis import AnalysisPools
from headrace_services.scheduler.engine.budgets import Budgets
from headrace_services.scheduler.engine.followers import Followers
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.janitor import Janitor
from headrace_services.scheduler.engine.log_reads import LogReads
from headrace_services.scheduler.engine.overview import OverviewGauges
from headrace_services.scheduler.engine.schema_watch import SchemaWatch
from headrace_services.scheduler.engine.sweeper import Sweeper
from headrace_services.scheduler.listeners import Listener, certified, encrypted
from headrace_services.scheduler.loop_watch import LoopWatch
from headrace_services.scheduler.monitored import monitored
from headrace_services.scheduler.preparing import prepare
from headrace_services.scheduler.rpc.code_service import CodeServicer, Serves
from headrace_services.scheduler.rpc.identity_service import IdentityServicer
from headrace_services.scheduler.rpc.join_service import JoinServicer, Signing
from headrace_services.scheduler.rpc.project_service import ProjectServicer
from headrace_services.scheduler.rpc.study_service import StudyServicer
from headrace_services.scheduler.session.heartbeats import Heartbeats
from headrace_services.scheduler.session.loads import Loads
from headrace_services.scheduler.session.registry import Registry
from headrace_services.scheduler.session.servicer import WorkerServicer
from headrace_services.scheduler.session.worker_session import REPLICA, Timing
from headrace_services.scheduler.settling import settle
from headrace_services.scheduler.store import log_reads, tokens
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.store.schema import UPDATE, SchemaError, head
from headrace_services.scheduler.store.tokens import TokenRows
from headrace_services.scheduler.suggesting.pool import Pool
from headrace_services.scheduler.suggesting.suggester import Suggester
from headrace_services.serving.health import Health
from headrace_services.serving.limits import WORKERS

if TYPE_CHECKING:
    from headrace_services.identity.authority import Authority

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run a scheduler."""

    database_url: str
    listen: str = "127.0.0.1:7440"
    insecure: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    auth: Auth | None = None
    """Whether calls need a token; None: only if other machines can reach it, over TLS."""
    worker_listen: str | None = None
    """Where workers connect, each with its certificate; None: at the users' listener, without one."""
    ca: Path | None = None
    """The folder of the authority that signs workers' certificates (`headrace ca init`)."""
    workers_at: tuple[str, ...] = ()
    """Where workers find their listeners; empty: on the hosts that they know, at this replica's port."""
    worker_certificate_lives: timedelta = WORKER_LIVES
    timing: Timing = field(default_factory=Timing)
    drain_grace_s: float = 10.0
    sampler_processes: int = 2
    """How many processes make proposals; they start when a study first asks for one."""
    proposal_limit_s: float = 120.0
    """The time limit of one attempt at a proposal."""
    migrates: bool = True
    """Whether to migrate the database at the start."""
    database_wait_s: float = 0.0
    """How long to wait for the database at the start while it is unavailable."""
    metrics_listen: str = ""
    """Where to serve metrics; empty: nowhere."""
    ages: Ages = field(default_factory=Ages)
    """How long the data of ended studies are kept."""


def check(settings: Settings) -> None:
    """Refuse settings that cannot work or are not safe. Raises InvalidFieldError."""
    if settings.metrics_listen:
        parse_listen(settings.metrics_listen)
    problems = at_one_address(
        {
            "--listen": settings.listen,
            "--worker-listen": settings.worker_listen,
            "--metrics-listen": settings.metrics_listen,
        }
    )
    host = settings.listen.rpartition(":")[0]
    if not _is_address(settings.listen):
        problems.append(
            _problem("--listen", settings.listen, "is not HOST:PORT", "Write, for example, 127.0.0.1:7440.")
        )
    elif not (settings.tls_cert or settings.ca) and not settings.insecure and not is_loopback(host):
        problems.append(
            _problem(
                "--listen",
                settings.listen,
                "would serve other machines without TLS",
                "Give --tls-cert and --tls-key, or say --insecure if the network is trusted.",
            )
        )
    if settings.worker_listen is not None and not _is_address(settings.worker_listen):
        problems.append(
            _problem(
                "--worker-listen",
                settings.worker_listen,
                "is not HOST:PORT",
                "Write, for example, 0.0.0.0:7442.",
            )
        )
    if settings.worker_listen is not None and settings.ca is None:
        problems.append(
            _problem(
                "--worker-listen",
                settings.worker_listen,
                "needs --ca, since workers connect with certificates",
                "Make an authority with `headrace ca init DIR HOST…`, and give --ca DIR.",
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


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal() and int(port) <= 65535


def _problem(field_name: str, value: str, message: str, remedy: str) -> Violation:
    return Violation(field=field_name, value=value, message=message, remedy=remedy)


async def serve(settings: Settings) -> None:
    """Run a scheduler until it is told to stop. Raises HeadraceError if it cannot start."""
    check(settings)
    engine, stop = open_engine(settings.database_url), Stop()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.call)
    try:
        prepared = prepare(engine, migrates=settings.migrates, wait_s=settings.database_wait_s)
        if await stop.allows(prepared):
            await _serve(engine, settings, stop)
    finally:
        await engine.dispose()


class Stop:
    """A request of the replica itself to stop, with the reason."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.reason = ""

    def call(self, reason: str = "") -> None:
        """Stop it."""
        self.reason = self.reason or reason
        self.called.set()

    async def allows(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do some work unless the replica is to stop, which cancels it. Returns whether it was done."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self.called.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                return False
            await tasks[0]
            return True
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _tell_of_first_token(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        if not await tokens.newest(conn, project=None, before=None, limit=1):
            log.warning(
                "nobody can call yet: no token exists. Make the first one here: "
                "headrace token create --role admin --database-url URL"
            )


async def _serve(engine: AsyncEngine, settings: Settings, stop: Stop) -> None:
    gate = _gate(engine, settings)
    if gate is not None:
        await _tell_of_first_token(engine)
        if settings.worker_listen is None:
            log.warning(
                "no worker can connect: calls need tokens, and workers have certificates instead. "
                "Give --ca and --worker-listen"
            )
    bound = _listeners(settings, gate)
    with scraped(settings.metrics_listen, REGISTRY) as shown:
        await _serve_bound(engine, settings, stop, bound, shown)
    if stop.reason:
        raise SchemaError(stop.reason, remedy=UPDATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The ports, taken before anything else starts, and what is signed at them."""

    users: Listener
    workers: Listener | None = None
    signing: Signing | None = None


async def _serve_bound(
    engine: AsyncEngine, settings: Settings, stop: Stop, bound: Bound, metrics: str
) -> None:
    """`metrics`: where they are served; empty if they are not."""
    loop, users, for_workers = asyncio.get_running_loop(), bound.users, bound.workers
    async with asyncio.TaskGroup() as tasks:
        hub = Hub(engine, tasks)
        registry = Registry(engine)
        heartbeats = Heartbeats(engine, settings.timing.lease_ttl_s)
        loads = Loads(engine)
        hub.deliver_with(registry.deliver)
        analysis = AnalysisPools()
        pool = Pool(settings.sampler_processes, limit_s=settings.proposal_limit_s)
        suggester = Suggester(hub, pool, tasks)
        hub.propose_with(suggester.want)
        janitor = Janitor(engine, settings.ages)
        health = Health()
        tell_instance(health)
        workers = WorkerServicer(
            hub,
            heartbeats,
            loads,
            registry,
            settings.timing,
            settings.ages,
            certified=for_workers is not None,
        )
        studies = StudyServicer(hub, analysis, janitor)
        studies.logs = logs = LogReads(engine, registry.find, tasks)
        registry.hear(log_reads.CHANNEL, logs.heard)
        studies.info = _info(metrics)
        users.add_studies(studies)
        users.add_identities(IdentityServicer(engine))
        users.add_projects(ProjectServicer(hub))
        says_who = for_workers is not None or users.asks_for_tokens
        users.add_code(CodeServicer(engine, Serves.USERS if says_who else Serves.ALL))
        users.add_joins(JoinServicer(engine, bound.signing))
        schema_watch = SchemaWatch(engine, stop.call)
        background = [tasks.create_task(schema_watch.run())]
        await schema_watch.first_look(stop.called)
        if for_workers is not None:
            for_workers.add_workers(workers)
            for_workers.add_code(CodeServicer(engine, Serves.WORKERS))
            for_workers.add_joins(JoinServicer(engine, bound.signing, for_workers=True))
            await for_workers.start(health)
        else:
            users.add_workers(workers)
        await users.start(health)
        watch = LoopWatch()
        sweeper = Sweeper(
            hub,
            settings.timing.lease_ttl_s,
            is_heard=registry.is_heard,
            late_within=watch.late_within,
        )
        background += [
            tasks.create_task(watch.run()),
            tasks.create_task(settle()),
            tasks.create_task(hub.run_waking()),
            tasks.create_task(heartbeats.run()),
            tasks.create_task(loads.run()),
            tasks.create_task(registry.run_notifying()),
            tasks.create_task(registry.run_listening()),
            tasks.create_task(Followers(hub, tasks).run()),
            tasks.create_task(Budgets(hub).run()),
            tasks.create_task(sweeper.run()),
            tasks.create_task(janitor.run()),
            tasks.create_task(suggester.run()),
        ]
        if metrics:
            background.append(tasks.create_task(OverviewGauges(engine).run()))
        gc.collect()
        gc.freeze()
        if for_workers is not None:
            print(f"headrace scheduler: workers connect to {for_workers.address}", flush=True)
        print(f"headrace scheduler: serving on {users.address}", flush=True)  # starters wait for this
        if metrics:
            print(f"headrace scheduler: metrics at http://{metrics}/metrics", flush=True)
        with monitored(hub, registry, engine):
            await stop.called.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, sys.exit, 130)
        listeners = [listener for listener in (users, for_workers) if listener is not None]
        await _drain(listeners, hub, registry, health, settings.drain_grace_s)
        log.info("%s", watch)
        for task in background:
            task.cancel()
        suggester.close()
        await analysis.close()


def _info(metrics: str) -> study_pb2.GetServerInfoResponse:
    return study_pb2.GetServerInfoResponse(
        version=SPOKEN.release,
        replica=REPLICA,
        program_schema=head(),
        protocol=SPOKEN.newest,
        metrics=metrics,
    )


async def _drain(
    listeners: Sequence[Listener],
    hub: Hub,
    registry: Registry,
    health: Health,
    grace_s: float,
) -> None:
    log.info("draining")
    health.leave()
    registry.drain()
    try:
        async with asyncio.timeout(grace_s):
            await hub.drain()
    except TimeoutError:
        log.warning("the database did not accept everything within %s s; the senders keep the rest", grace_s)
    await asyncio.gather(*(listener.stop(min(2.0, grace_s)) for listener in listeners))


def _gate(engine: AsyncEngine, settings: Settings) -> Gate | None:
    """The check of tokens; None if no caller needs one."""
    asks = asks_for_tokens(settings.auth, settings.listen, tls=_has_tls(settings))
    return Gate(KnownTokens(TokenRows(engine))) if asks else None


def _has_tls(settings: Settings) -> bool:
    """Whether users connect over TLS."""
    return settings.tls_cert is not None or (settings.ca is not None and not settings.insecure)


def _authority(folder: Path) -> "Authority":
    from headrace_services.identity.authority import load  # cryptography, only if there is an authority

    return load(folder)


def _listeners(settings: Settings, gate: Gate | None) -> Bound:
    """Bind the ports before anything else starts. Raises HeadraceError."""
    authority = _authority(settings.ca) if settings.ca is not None else None
    credentials = None
    if settings.tls_cert and settings.tls_key:
        credentials = encrypted(PEM.bytes(settings.tls_key), PEM.bytes(settings.tls_cert))
    elif authority is not None and not settings.insecure:
        credentials = encrypted(authority.server_key_pem, authority.server_pem)
    users = Listener("--listen", settings.listen, credentials, gate)
    if settings.worker_listen is None or authority is None:
        return Bound(users=users)
    workers = Listener("--worker-listen", settings.worker_listen, certified(authority), known=WORKERS)
    signing = Signing(
        authority=authority,
        worker_port=workers.port,
        worker_addresses=settings.workers_at,
        lives=settings.worker_certificate_lives,
    )
    return Bound(users=users, workers=workers, signing=signing)
