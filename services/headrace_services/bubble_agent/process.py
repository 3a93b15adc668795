"""The agent's process: lock the folder, serve, and check the stages until told to stop.

One event loop does everything. A glance costs a few microseconds per stage; it happens every `CLOSE_S` while a
trial runs, and every `FAR_S` otherwise.

One agent per folder: it holds a lock on a file there, which the kernel releases when the agent dies. At a clean
stop every gate closes. At any other end the lease on the gates expires.
"""

import asyncio
import fcntl
import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from headrace.bounds.edge import BoundsInterceptor
from headrace.errors import HeadraceError, InvalidFieldError, Violation
from headrace.v1 import bubble_pb2, bubble_pb2_grpc
from headrace_services.bubble_agent.agent import Agent
from headrace_services.bubble_agent.certificate import WorkerCertificate
from headrace_services.bubble_agent.neighbours import Neighbours
from headrace_services.bubble_agent.servicer import BubbleServicer
from headrace_services.identity.listening import is_loopback
from headrace_services.serving.admission import AdmissionInterceptor
from headrace_services.serving.limits import Known
from headrace_services.serving.server import Server
from headrace_torch.bubble_shm import StageFileError, make_folder

log = logging.getLogger(__name__)

CLOSE_S: Final = 0.004
FAR_S: Final = 0.02
LOOK_S: Final = 0.1
NICENESS: Final = 19
"""If no core is spare, ranks come first: at the usual priority the agent alone slows them by a few percent."""
SCAN_S: Final = 0.5
LOCK: Final = "agent.lock"
SOCKET: Final = "agent.sock"
LONGEST_SOCKET: Final = 107
"""The longest path of a Unix socket, in bytes."""
CALLERS: Final = Known(calls=64, streams=64, messages=8)
"""How many calls one caller may have at once: all callers on the socket together, or the worker of another agent."""
MESSAGE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run an agent.

    Attributes:
        folder: the folder of the stages' files.
        name: what other agents call it.
        listen: HOST:PORT for other agents; empty for the Unix socket alone.
        peers: HOST:PORT of other machines' agents.
        worker_home: the home of a worker whose certificate agents present to each other; None: without TLS.
        insecure: whether `listen` may be an address that other machines can reach.
        as_json: whether the line that announces that it serves is JSON.
    """

    folder: Path
    name: str
    listen: str = ""
    peers: tuple[str, ...] = ()
    worker_home: Path | None = None
    insecure: bool = False
    as_json: bool = False


def socket_of(folder: Path) -> Path:
    """Returns the socket of the agent of a folder."""
    return folder / SOCKET


def check(settings: Settings) -> None:
    """Rejects settings that cannot work or are not safe. Raises InvalidFieldError."""
    for field, value in (("--listen", settings.listen), *(("--peer", peer) for peer in settings.peers)):
        host, _, port = value.rpartition(":")
        if value and (not host or not port.isdecimal() or not int(port) <= 65535):
            raise _fault(field, value, "is not HOST:PORT", "Write, for example, 127.0.0.1:7444.")
    host = settings.listen.rpartition(":")[0]
    if settings.listen and not (settings.insecure or settings.worker_home) and not is_loopback(host):
        remedy = "Give --worker-home, or use --insecure on a trusted network: whoever reaches it can make trials wait."
        raise _fault("--listen", settings.listen, "would serve other machines without TLS", remedy)
    path = str(socket_of(settings.folder))
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise _fault(
            "--folder",
            str(settings.folder),
            "is too long for a Unix socket",
            "Give a shorter folder in memory.",
        )


async def serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT. Raises HeadraceError if it cannot start."""
    check(settings)
    certificate = WorkerCertificate(settings.worker_home) if settings.worker_home else None
    os.setpriority(os.PRIO_PROCESS, 0, NICENESS)  # before there are threads, so that they inherit it
    try:
        make_folder(settings.folder)
    except StageFileError as error:
        raise HeadraceError(f"the bubble agent cannot start: {error}.") from None
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _only_one(settings.folder):
        agent = Agent(settings.folder)
        servicer = BubbleServicer(agent, os.getpid())
        own, others = socket_server(servicer, settings.folder), port_server(servicer)
        credentials = certificate.server() if certificate is not None else None
        port = others.bind("--listen", settings.listen, credentials) if settings.listen else 0
        await own.start()
        await others.start()
        try:
            await _until(stop, agent, settings, port, certificate)
        finally:
            agent.close()
            await asyncio.gather(own.stop(0), others.stop(0))
            socket_of(settings.folder).unlink(missing_ok=True)


async def _until(
    stop: asyncio.Event, agent: Agent, settings: Settings, port: int, certificate: WorkerCertificate | None
) -> None:
    _say(settings, port)
    neighbours = Neighbours(agent, settings.name, settings.peers, certificate)
    telling = asyncio.create_task(neighbours.run())
    try:
        await _watch(stop, agent, neighbours)
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling


async def _watch(stop: asyncio.Event, agent: Agent, neighbours: Neighbours) -> None:
    clock = asyncio.get_running_loop().time
    scan_at = look_at = clock()
    while not stop.is_set():
        now = clock()
        if now >= scan_at:
            agent.scan()
            scan_at = now + SCAN_S
        if now >= look_at:
            agent.look()
            look_at = now + LOOK_S
        close = agent.glance()
        neighbours.share()
        await asyncio.sleep(CLOSE_S if close else FAR_S)


def socket_server(servicer: BubbleServicer, folder: Path) -> Server:
    """Returns the server for the user of this machine, bound to the folder's socket. Raises HeadraceError."""
    server, path = _server(), socket_of(folder)
    path.unlink(missing_ok=True)  # of an agent that was killed: the lock says that none is running
    bubble_pb2_grpc.add_BubbleServiceServicer_to_server(servicer, server.grpc)
    server.bind("--folder", f"unix:{path}", None)
    return server


def port_server(servicer: BubbleServicer) -> Server:
    """Returns the server for other machines' agents, not yet bound. It receives their progress, and exposes
    nothing about this machine. The two servers share no limits, so whoever exhausts this one leaves the user's
    alone."""
    server = _server()
    service = bubble_pb2.DESCRIPTOR.services_by_name["BubbleService"].full_name
    handler = grpc.stream_unary_rpc_method_handler(
        servicer.ShareProgress,
        request_deserializer=bubble_pb2.ShareProgressRequest.FromString,
        response_serializer=bubble_pb2.ShareProgressResponse.SerializeToString,
    )
    server.grpc.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"ShareProgress": handler}),)
    )
    return server


def _server() -> Server:
    admission = AdmissionInterceptor(known=CALLERS)
    return Server((admission, BoundsInterceptor()), admission.connections, message_bytes=MESSAGE_BYTES)


def _say(settings: Settings, port: int) -> None:
    """Prints one line, which launchers wait for."""
    listen = f"{settings.listen.rpartition(':')[0]}:{port}" if settings.listen else ""
    if settings.as_json:
        told = {"pid": os.getpid(), "folder": str(settings.folder), "listen": listen}
        print(json.dumps(told), flush=True)
    else:
        also = f", other agents on {listen}" if listen else ""
        print(f"headrace bubble-agent: watching {settings.folder}{also}", flush=True)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Holds the folder's lock. Raises HeadraceError if another agent holds it."""
    with (folder / LOCK).open("a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            other = lock.read(20).strip() or "another process"
            raise HeadraceError(
                f"process {other} is the bubble agent of {folder} already: a machine has one.",
                remedy="Use that one (`headrace bubbles` asks it), or stop it first.",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
