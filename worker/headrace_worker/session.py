"""The stream to the scheduler, kept open permanently.

One reader task and one writer task per stream; `call.read()` is cancelled only to give up the stream, because that
cancels the RPC. There are no queues: durable messages are read from the outbox as fast as the stream accepts them,
and heartbeats are a flag, so that only the newest is ever sent.

When a stream ends, for whatever reason, the next address is tried. Attempts become less and less frequent, but all
addresses are tried within a lease time: a scheduler that is back must hear from its workers before it presumes
them dead. After a Drain, or when a scheduler falls silent, the next one is tried at once. Each worker tries the
addresses in its own order, so that workers spread over the replicas, and over the remaining ones when one fails.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

import grpc

from headrace.error_status import from_rpc_error
from headrace.errors import InvalidFieldError
from headrace.v1 import worker_pb2, worker_pb2_grpc
from headrace_worker.backoff import Backoff
from headrace_worker.courier import Courier
from headrace_worker.effects import Effect, Finish, Welcomed
from headrace_worker.outbox import Entry
from headrace_worker.session_core import Phase, SessionProtocolError

log = logging.getLogger(__name__)
Call: TypeAlias = "grpc.aio.StreamStreamCall[worker_pb2.SessionRequest, worker_pb2.SessionResponse]"

_BATCH = 64
_MOST_CHUNKS = 16
MAX_MESSAGE_BYTES = 4 << 20
"""The most that a scheduler accepts in one message."""
_FRAME_BYTES = 16
"""More than the overhead of a message within another."""
_HELLO_TIMEOUT_S = 10.0
_STEADY_S = 5.0
_LONGEST_WAIT_S = 5.0
"""The pause between two attempts, before the first Welcome has named the lease time."""
_LEAST_S = 0.5
_NOT_TAKEN = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Schedulers are on the internal network, whatever proxies the environment names.
    ("grpc.enable_http_proxy", 0),
    # A new session is a new connection. gRPC would share one among all channels of a process to the same address,
    # even a connection that no longer works.
    ("grpc.use_local_subchannel_pool", 1),
    # This loop does the waiting; gRPC's own would be added to it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_JUDGE_S = 30.0


class Schedulers(Protocol):
    """Where sessions are opened, and the worker's credentials there."""

    @property
    def replicas(self) -> tuple[str, ...]:
        """The current addresses."""
        ...

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The credentials for a channel that is opened now; None for plain text. Raises InvalidFieldError."""
        ...


class Handler(Protocol):
    """Carries out what the session's core decides."""

    async def handle(self, effect: Effect) -> None:
        """Carries out one effect; must be quick, since the stream waits."""
        ...

    async def telemetry(self) -> Sequence[worker_pb2.DeviceTelemetry]:
        """Measures the devices."""
        ...

    def trouble(self) -> str:
        """Says what prevents the worker from working now, or nothing."""
        ...

    def rejected(self) -> str:
        """Says which rejected messages the worker keeps, or nothing."""
        ...

    def reused(self) -> str:
        """Says how processes ran several trials, or nothing."""
        ...

    def mps(self) -> str:
        """Says how trials share GPUs, or nothing."""
        ...

    def beat(self) -> None:
        """A heartbeat interval passed."""
        ...


async def _unexplained(_: str, why: str) -> str:
    return why


class _StreamOverError(Exception):
    """The stream must be given up; the text says why."""


def turns_after(addresses: Sequence[str], lost: str = "") -> list[str]:
    """The order in which a worker tries its schedulers: random, with the one that it has just left last.

    So workers spread over the replicas, and those that lose theirs spread over the remaining ones.
    """
    others = [address for address in addresses if address != lost]
    return random.sample(others, len(others)) + [lost] * (lost in addresses)


class Session:
    """Sessions, one after another."""

    def __init__(
        self,
        target: Schedulers,
        courier: Courier,
        handler: Handler,
        backoff: Callable[[], Backoff] = lambda: Backoff(cap_s=_LONGEST_WAIT_S),
        explained: Callable[[str, str], Awaitable[str]] = _unexplained,
    ) -> None:
        """`explained` says in clearer words why no session was established at an address."""
        self._target = target
        self._courier = courier
        self._core = courier.core
        self._handler = handler
        self._backoff = backoff
        self._explained = explained
        self._welcomed = asyncio.Event()
        self._interval_s = 5.0
        self._lease_ttl_s: float | None = None
        self._unwelcome = 0
        self._beat_due = False
        self._telemetry: Sequence[worker_pb2.DeviceTelemetry] = ()
        self._chunks: deque[worker_pb2.LogChunk] = deque(maxlen=_MOST_CHUNKS)
        self._give_up = ""
        self._drain_grace_s: float | None = None
        self._last_one = asyncio.Event()

    async def run(self) -> None:
        """Connects again and again until cancelled."""
        backoff = self._backoff()
        loop = asyncio.get_running_loop()
        last = ""
        turns = turns_after(self._target.replicas)
        while True:
            address = turns.pop(0)
            turns.append(address)
            began = loop.time()
            why = await self._one(address)
            if self._welcomed.is_set():
                log.info("session with %s ended: %s", address, why)
                last = ""
                turns = turns_after(self._target.replicas, lost=address)
                if loop.time() - began >= _STEADY_S or self._drain_grace_s is not None:
                    backoff.succeeded()
                if self._give_up:
                    continue
            elif (why := await self._explained(address, why)) != last:
                log.warning("scheduler %s: %s; trials continue, retrying until it answers", address, why)
                last = why
            if self._lease_ttl_s is not None:
                each_s = self._lease_ttl_s / 4 / len(self._target.replicas)
                backoff.cap_s = min(backoff.cap_s, max(_LEAST_S, each_s))
            await backoff.wait()

    def beat_soon(self) -> None:
        """Sends a heartbeat before the next durable message."""
        self._beat_due = True
        self._courier.wake.set()

    def say_log(self, chunk: worker_pb2.LogChunk) -> None:
        """Sends a part of a log, after the durable messages in the outbox. It is lost if the session ends first."""
        self._chunks.append(chunk)
        self._courier.wake.set()

    def anew(self, why: str) -> None:
        """Opens another session, in which the worker declares again what it offers."""
        self._give_up = self._give_up or why
        self._courier.wake.set()

    def leave(self) -> None:
        """Opens a last session, which offers no slots: nothing more may be placed here."""
        self._core.leave()
        self._give_up = "this worker stops"
        self._courier.wake.set()

    async def last_one(self) -> None:
        """Waits until a scheduler has accepted the last session, and so knows that this worker leaves."""
        await self._last_one.wait()

    async def judge(self, asked: worker_pb2.JudgeFoldersRequest) -> worker_pb2.JudgeFoldersResponse:
        """Asks any scheduler which folders may be deleted. Raises `OSError` if none answers."""
        why = "no scheduler"
        for address in turns_after(self._target.replicas):
            try:
                async with channel_to(address, self._target.credentials()) as channel:
                    call = worker_pb2_grpc.WorkerServiceStub(channel).JudgeFolders(asked, timeout=_JUDGE_S)
                    return await call
            except (grpc.aio.AioRpcError, InvalidFieldError) as error:
                why = str(error.details() if isinstance(error, grpc.aio.AioRpcError) else error)
        raise OSError(f"no scheduler says which folders may go: {why}")

    async def _one(self, address: str) -> str:
        """Runs one session; returns why it ended."""
        self._welcomed.clear()
        self._chunks.clear()
        self._give_up = ""
        self._drain_grace_s = None
        try:
            credentials = self._target.credentials()
        except InvalidFieldError as error:
            return str(error)
        async with channel_to(address, credentials) as channel:
            call: Call = worker_pb2_grpc.WorkerServiceStub(channel).Session()
            try:
                return await self._converse(call)
            finally:
                self._core.disconnect()
                call.cancel()

    async def _converse(self, call: Call) -> str:
        # Not a TaskGroup: one whose child fails swallows a cancellation that arrives at the same moment, and a
        # daemon that is being stopped would connect again.
        tasks = [
            asyncio.create_task(self._read(call), name="session reader"),
            asyncio.create_task(self._write(call), name="session writer"),
            asyncio.create_task(self._beat(), name="session heartbeat"),
            asyncio.create_task(self._measure(), name="session telemetry"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        why = [_why(error) for error in results if isinstance(error, Exception)]
        return why[0] if why else "the stream was cancelled"

    async def _read(self, call: Call) -> None:
        while True:
            response = await call.read()
            if not isinstance(response, worker_pb2.SessionResponse):  # grpc.aio.EOF
                raise _StreamOverError(await _end_of(call))
            for effect in self._core.receive(response):
                match effect:
                    case Welcomed():
                        self._interval_s = max(effect.heartbeat_interval_s, 0.05)
                        self._lease_ttl_s = effect.lease_ttl_s
                        self._unwelcome = 0
                        log.info("session open with scheduler %s", effect.scheduler)
                        self._beat_due = True
                        self._welcomed.set()
                        self._courier.wake.set()
                    case Finish():
                        self._drain_grace_s = effect.grace_s
                        self._courier.wake.set()
                await self._handler.handle(effect)

    async def _write(self, call: Call) -> None:
        patience_s = _HELLO_TIMEOUT_S
        if self._lease_ttl_s is not None:
            # A scheduler that is merely slow must not be retried faster and faster: wait longer each time.
            patience_s = min(patience_s, max(self._lease_ttl_s / 4, _LEAST_S) * 2**self._unwelcome)
        try:
            async with asyncio.timeout(patience_s):
                is_last = self._core.leaving_for_good
                await call.write(worker_pb2.SessionRequest(hello=self._core.connect()))
                await self._welcomed.wait()
                if is_last:
                    self._last_one.set()
        except TimeoutError:
            self._unwelcome = min(self._unwelcome + 1, 10)
            raise _StreamOverError(f"no Welcome within {patience_s:g} s") from None
        wake = self._courier.wake
        while True:
            wake.clear()
            if self._give_up:
                raise _StreamOverError(self._give_up)
            if self._core.phase is Phase.DRAINING:
                await self._drain(call)
            if self._beat_due:
                self._beat_due = False
                beat = self._core.heartbeat(
                    self._telemetry,
                    self._handler.trouble(),
                    self._handler.rejected(),
                    self._handler.reused(),
                    self._handler.mps(),
                )
                await call.write(worker_pb2.SessionRequest(heartbeat=beat))
            entries, more = await self._courier.unsent(_BATCH)
            for together in _batches(entries):
                await self._send(call, together)
            if self._chunks and not more:  # after everything that the scheduler waits for, one at a time
                await call.write(worker_pb2.SessionRequest(log_chunk=self._chunks.popleft()))
                more = bool(self._chunks)
            if not more:
                await wake.wait()

    async def _send(self, call: Call, entries: Sequence[Entry]) -> None:
        """Writes durable messages as one; a single one may be too large."""
        first = entries[0].request
        if len(entries) > 1:
            reports = worker_pb2.Reports(reports=[entry.request.report for entry in entries])
            await call.write(worker_pb2.SessionRequest(reports=reports))
        elif (size := first.ByteSize()) > MAX_MESSAGE_BYTES:
            # The stream would end on it, every time.
            why = f"it has {size} bytes, and a message to the scheduler at most {MAX_MESSAGE_BYTES}"
            for effect in self._core.refuse(entries[0].sequence, why):
                await self._handler.handle(effect)
        else:
            await call.write(first)
        self._core.sent(entries[-1].sequence)

    async def _drain(self, call: Call) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._drain_grace_s or 1.0):
                await call.done_writing()
                await asyncio.Event().wait()  # the reader ends the session
        raise _StreamOverError("the scheduler drains")

    async def _beat(self) -> None:
        await self._welcomed.wait()
        while True:
            self._beat_due = True
            self._courier.wake.set()
            await asyncio.sleep(self._interval_s)
            self._handler.beat()
            if reason := self._core.tick():
                self._give_up = f"asking again for this worker's leases: {reason}"
                self._courier.wake.set()

    async def _measure(self) -> None:
        # Separate from the heartbeat: a GPU driver that hangs must not cost the leases of all trials.
        while True:
            try:
                self._telemetry = await self._handler.telemetry()
            except Exception:  # the worker survives, whatever its devices and disks do
                log.exception("the devices and the disk could not be measured")
            await asyncio.sleep(self._interval_s)


def _batches(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Groups consecutive reports, as far as one message holds them; anything else is sent alone."""
    found: list[list[Entry]] = []
    room = 0
    for entry in entries:
        size = entry.request.ByteSize() + _FRAME_BYTES
        if entry.request.WhichOneof("message") != "report":
            found.append([entry])
            room = 0
        elif size <= room:
            found[-1].append(entry)
            room -= size
        else:
            found.append([entry])
            room = MAX_MESSAGE_BYTES - 2 * _FRAME_BYTES - size
    return found


def channel_to(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Makes a channel; the connection is made with the first call."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS)


async def _end_of(call: Call) -> str:
    """Says how the scheduler ended a stream, with the remedy if it does not accept this worker."""
    code, details = await call.code(), await call.details()
    if code in _NOT_TAKEN:
        metadata = await call.trailing_metadata() or grpc.aio.Metadata()
        return _why(grpc.aio.AioRpcError(code, metadata, metadata, details))
    return f"{code.name}: {details}" if details else "the scheduler closed the stream"


def _why(error: Exception) -> str:
    """Says why a stream ended; raises anything that is a bug in this program."""
    match error:
        case grpc.aio.AioRpcError() if error.code() in _NOT_TAKEN:
            return f"{error.code().name}: {from_rpc_error(error)}"
        case grpc.aio.AioRpcError():
            return f"{error.code().name}: {error.details()}"
        case asyncio.InvalidStateError() | grpc.aio.UsageError():
            return "the stream broke"  # a write that lost the race against the stream's end
        case _StreamOverError() | SessionProtocolError():
            return str(error)
        case _:
            raise error
