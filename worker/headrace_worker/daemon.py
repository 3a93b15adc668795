"""The worker daemon: one per machine. It never imports torch and never forks.

It locks its home, and keeps a session with a scheduler open until a signal ends it. When a scheduler has accepted
it for the first time, it takes over from its predecessor (`succession`). Then it runs an attempt for each lease,
and answers trials on a Unix socket. It restores its home and that socket if they are deleted (`ground`).

Who is authoritative: the scheduler, for leases; the outbox, for what was reported; the kernel, for what runs. If
this process dies at any instant, the trials die with it (PR_SET_PDEATHSIG), and everything that was promised to
anyone is in the outbox.

At SIGTERM, at a spot notice, at the end of its stay (`stay`), and when a user drains the worker, it ends without a
loss; at SIGINT and SIGHUP it ends sooner (`leaving`). One more signal kills the trials without waiting.
"""

import asyncio
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import assert_never

from headrace.bounds.sessions import TROUBLE
from headrace.checkpoints import CheckpointStore, store_from_url
from headrace.environment import is_named
from headrace.grants import WHOLE
from headrace.mps import PIPE_DIRECTORY, Mode, pipe_directory
from headrace.scraping import scraped
from headrace.target import Target
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import credential, own_groups
from headrace_worker.alone import Alone
from headrace_worker.attempt import Attempt, Host
from headrace_worker.bubble_agent import keep_bubble_agent
from headrace_worker.bubble_slots import BubbleSlots
from headrace_worker.bubble_watch import BubbleOffer
from headrace_worker.bundle import Bundle
from headrace_worker.cleaning import Cleaning
from headrace_worker.code_cache import CodeCache
from headrace_worker.code_fetch import CodeFetcher
from headrace_worker.courier import Courier
from headrace_worker.device_health import DeviceHealth
from headrace_worker.devices import Devices, discover
from headrace_worker.disk import who_fills
from headrace_worker.effects import (
    Acked,
    Decide,
    Effect,
    Fence,
    Finish,
    Forget,
    Forgive,
    Kill,
    Leave,
    ReadLog,
    Reject,
    Start,
    Welcomed,
    Withdrawn,
)
from headrace_worker.environments import Environments
from headrace_worker.exits import Ending
from headrace_worker.ground import Ground
from headrace_worker.home import Home, recall
from headrace_worker.job_signals import in_batch_job
from headrace_worker.joining import Renewal, joined
from headrace_worker.launch import folder_of
from headrace_worker.leaving import Leaving, spot_notice
from headrace_worker.log_reads import LogKeeper, LogReads
from headrace_worker.memory import KernelKills
from headrace_worker.metrics import registry_of
from headrace_worker.mps import Mps, Users
from headrace_worker.mps_control import MpsControl
from headrace_worker.outbox import DurableOutbox, Outbox, RecordedLease
from headrace_worker.place import Place
from headrace_worker.programs import Programs
from headrace_worker.quarters import Estate
from headrace_worker.reach import explained_without_certificate
from headrace_worker.retention import Retention
from headrace_worker.retries import Retries
from headrace_worker.run_as import prepare
from headrace_worker.runtime_server import RuntimeServer, owner_of
from headrace_worker.session import Session
from headrace_worker.session_core import Identity, Phase, SessionCore
from headrace_worker.settings import WorkerSettings
from headrace_worker.slots import Slots
from headrace_worker.standby import Standbys, family
from headrace_worker.stay import Stay
from headrace_worker.store_watch import StoreWatch
from headrace_worker.succession import Succession
from headrace_worker.tidying import Tidying

log = logging.getLogger(__name__)
_STOP_SIGNALS = (signal.SIGINT, signal.SIGHUP)
_NOT_OURS = (signal.SIGUSR1, signal.SIGUSR2)
_LAST_ACKS_S = 5.0
_LAST_LOGS_S = 2.0
_LOG_LOOK_S = 0.5
_FIRST_LOOK_S = 2.0
"""How long the store may take to answer before the worker connects without having seen the store."""
_DRIVER_S = 10.0
"""How long a driver may take to say whether a device failed."""


class Daemon:
    """Runs until it is stopped."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._stay = Stay(settings.stay, time.monotonic)
        self._attempts: dict[str, Attempt] = {}
        self._bundles: dict[str, Bundle] = {}
        self._retention = Retention()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._no_room = ""
        self._rejected = ""
        self._renewal: Renewal | None = None
        self._estate: Estate | None = None
        # In a thread of its own: a driver that hangs blocks nothing else.
        self._meter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="telemetry")

    def stop(self) -> None:
        """Starts the clean stop; called again, it stops faster."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        """Serves until `stop`. Raises `AlreadyRunningError`, or `ValueError` for an invalid setting."""
        settings = self._settings
        store = store_from_url(settings.store_url)
        devices = discover(
            worker=settings.name,
            cpu_slots=settings.cpu_slots,
            fake_gpus=settings.fake_gpus,
            fake_links=settings.fake_links,
            bubbles=settings.bubbles,
        )
        if settings.run_as is not None:
            settings.home.mkdir(parents=True, exist_ok=True)
            settings.run_as.require_no_hand_in(settings.home, "--home")
            if store.folder is not None:
                settings.run_as.require_no_hand_in(store.folder, "--store")
        with Home(settings.home) as held:
            outbox = Outbox(settings.outbox_path)
            recorded = outbox.leases()
            durable = DurableOutbox(outbox)
            try:
                await self._serve(store, devices, durable, held, recorded)
            finally:
                self._meter.shutdown(wait=False, cancel_futures=True)
                durable.close()

    async def _serve(
        self,
        store: CheckpointStore,
        devices: Devices,
        outbox: DurableOutbox,
        held: Home,
        recorded: Sequence[RecordedLease],
    ) -> None:
        settings = self._settings
        user = settings.run_as
        estate = None if user is None else _estate(settings)
        self._estate = estate
        if user is not None:
            if own_groups.exist():
                ours = own_groups.of_family(family(settings.home))
                user = replace(user, groups=(*user.groups, ours))
            await asyncio.to_thread(prepare, user, settings.home)
        identity = _identity(settings, devices.devices, held)
        core = SessionCore(identity)
        core.inherit([one.lease for one in recorded])
        await recall(core, outbox)
        courier = Courier(outbox, core)
        succession = self._succession = Succession(held, recorded, courier)
        self._slots = Slots(len(devices.devices))
        self._devices, self._courier = devices, courier
        self._cleaning = Cleaning(store, outbox, self._tasks)
        self._store_watch = StoreWatch(store)
        core.store = self._store_watch.found
        target = Target(replicas=settings.schedulers, tls=settings.tls, tls_ca=settings.tls_ca)
        joins = joined(target, settings.home, settings.name, settings.join_token, user)
        reach = await self._stay.within(asyncio.create_task(joins))
        if user is not None and reach is None:
            log.warning(
                "this worker has no certificate, so its schedulers serve anyone who can reach them, even trials, "
                "as admins. To prevent this, start the schedulers with --ca, --worker-listen and --auth tokens, and "
                "join"
            )
        explained = reach.explained if reach is not None else explained_without_certificate
        session = self._session = Session(reach or target, courier, handler=self, explained=explained)
        if reach is not None:
            self._renewal = Renewal(reach, settings.home, partial(session.anew, "its certificate is renewed"))
        self._store_watch.appeared = partial(session.anew, "its store answers")
        self._standbys = Standbys(settings.home, enabled=settings.prestart)
        self._leaving = Leaving(
            settings,
            self._attempts,
            self._bundles,
            session=session,
            courier=courier,
            standbys=self._standbys,
            stop=self.stop,
            over=self._stopping.set,
        )
        keeper = self._keeper = LogKeeper(store, self._tasks)
        self._logs = LogReads(store, keeper.pending, settings.log_dir.absolute())

        self._bubble_slots = BubbleSlots()
        mps_mode = settings.mps if not settings.fake_gpus or settings.mps is Mode.ON else Mode.OFF
        pipe = pipe_directory(os.environ, settings.home)
        self._mps = Mps(
            mps_mode,
            MpsControl(pipe, held.identity, os.environ),
            pipe=pipe,
            environ=os.environ,
            devices=devices.devices,
            users=(
                Users(worker=os.geteuid(), trials=os.geteuid())
                if user is None
                else Users(worker=os.geteuid(), trials=user.uid, may_enter=user.may_enter)
            ),
            owned=lambda: self._bubble_slots.owned,
            ask_to_leave=self._ask_to_leave,
            let_stay=self._let_stay,
            end_idle=lambda: self._standbys.end_waiting(PIPE_DIRECTORY),
        )
        keeps_pipe = await self._mps.check()

        def failed() -> None:
            core.defects = {**self._health.defects, **self._bubble_slots.gone}
            session.beat_soon()

        loop = asyncio.get_running_loop()
        self._health = DeviceHealth(devices, changed=partial(loop.call_soon_threadsafe, failed))
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGTERM, self._leaving.terminate)
        # Unhandled, the signals that a batch system sends to its job would end the worker. Trials keep the
        # default.
        for number in _NOT_OURS:
            loop.add_signal_handler(number, log.info, "%s is ignored", number.name)
        async with AsyncExitStack() as stack:
            owner = owner_of(held.identity, identity.incarnation)
            note = settings.home / "runtime"
            runtime = await stack.enter_async_context(
                RuntimeServer(self._attempts, self._bundles, note, owner, user)
            )

            if reach is not None:
                held.keep(credential.FILE)

            def furnish() -> None:
                if user is not None:
                    prepare(user, settings.home)
                if reach is not None:
                    credential.store(settings.home, reach.credential)

            def moved() -> None:
                core.locked_again(held.lock)
                session.anew("its home was created again")

            self._ground = Ground(
                held, outbox, runtime, furnish=furnish, moved=moved, lost=self._leaving.by_itself
            )
            stack.push_async_callback(self._ground.close)
            shown = stack.enter_context(scraped(settings.metrics_listen, registry_of(self._figures)))
            environ = dict(os.environ)
            if not keeps_pipe:
                environ.pop(PIPE_DIRECTORY, None)  # only trials with a share are clients of the worker's own
            self._environments = Environments(
                settings.environments_dir.absolute(), environ, self._tasks, settings.code_cache_bytes, user
            )
            fetcher = CodeFetcher(reach or target)
            cache = CodeCache(settings.code_dir.absolute(), fetcher, settings.code_cache_bytes)
            self._place = Place(
                devices=tuple(devices.devices),
                bubbles=self._bubble_slots,
                runtime=lambda: runtime.address,
                ready=succession.over,
                stands=self._ground.look,
                log_dir=settings.log_dir.absolute(),
                scratch_dir=settings.scratch_dir.absolute(),
                environ=environ,
                cores=len(os.sched_getaffinity(0)),
                pass_env=settings.pass_env,
                trial_umask=settings.trial_umask,
                user=user,
                estate=estate,
                taken_dir=settings.taken_dir,
                store=store,
                require_store=self._store_watch.require,
                courier=courier,
                standbys=self._standbys,
                programs=Programs(
                    cache,
                    self._environments,
                    may_read=user.may_read if user is not None else lambda _: True,
                    installs=user is None or own_groups.exist(),
                ),
                retries=Retries(),
                kernel_kills=KernelKills.of_this_process(),
                mps=self._mps,
                device_failure=self._device_failure,
                health=self._health,
                saved=self._retention.saved,
                abandoned=self._cleaning.abandoned,
                job_ends=lambda: self._leaving.terminated and in_batch_job(os.environ),
                keep_log=keeper.keep,
            )
            async with self._tasks as tasks:
                cutter = tasks.create_task(self._cut_logs(), name="cut logs")
                cleaner = tasks.create_task(courier.clean(), name="delete acknowledged messages")
                watcher = tasks.create_task(self._store_watch.run(), name="watch the store")
                await self._store_watch.seen(_FIRST_LOOK_S)
                serving = tasks.create_task(session.run(), name="session")
                tidying = Tidying(store, settings.log_dir.absolute(), session.judge, self._busy_folders)
                succeeding = tasks.create_task(self._succeed(succession, runtime, tidying), name="succeed")
                lasting = [serving, cutter, cleaner, succeeding, watcher]
                if self._renewal is not None:
                    lasting.append(tasks.create_task(self._renewal.run(), name="renew the certificate"))
                if settings.bubbles:
                    lasting.append(tasks.create_task(keep_bubble_agent(), name="bubble agent"))
                    offer = BubbleOffer(
                        self._bubble_slots,
                        self._slots,
                        core,
                        taken_back=failed,
                        offered=partial(session.anew, "there are new slots in bubbles"),
                        end=self._end_those_on,
                        leave_s=settings.bubble_leave_s,
                    )
                    lasting.append(tasks.create_task(offer.watch(), name="bubble slots"))
                lasting.append(tasks.create_task(self._leave_when_over(), name="end the stay"))
                if settings.spot_notice is not None:
                    lasting.append(
                        tasks.create_task(spot_notice(settings.spot_notice, self._leaving.by_itself))
                    )
                count = len(devices.devices)
                print(f"headrace worker: {settings.name} offers {count} slot{'s' * (count != 1)}", flush=True)
                if shown:
                    print(f"headrace worker: metrics at http://{shown}/metrics", flush=True)
                await self._stopping.wait()
                closing = tasks.create_task(self._environments.close(), name="end installations")
                self._mps.hurry()
                await self._leaving.wind_down(self._hurry, _LAST_ACKS_S)
                await closing
                await self._mps.close()
                await keeper.finish(_LAST_LOGS_S)
                for task in lasting:
                    task.cancel()
                self._store_watch.close()
        for number in (*_STOP_SIGNALS, *_NOT_OURS, signal.SIGTERM):
            loop.remove_signal_handler(number)

    async def _leave_when_over(self) -> None:
        self._leaving.by_itself(await self._stay.until_over(lambda: bool(self._attempts or self._bundles)))

    async def _succeed(self, succession: Succession, runtime: RuntimeServer, tidying: Tidying) -> None:
        """Takes over from the previous daemon; then deletes, now and then, what nobody needs any more."""
        settings = self._settings
        folders = [settings.scratch_dir, settings.taken_dir, settings.tmp_dir]
        await succession.run(runtime.clear_up, folders)
        if settings.run_as is not None:
            await asyncio.to_thread(prepare, settings.run_as, settings.home)
        if self._estate is not None:
            await asyncio.to_thread(self._estate.clear_unused)
        succession.over.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sweep(), name="sweep uploads")
            tasks.create_task(tidying.run(), name="tidy folders")

    # What the session calls (session.Handler).

    async def handle(self, effect: Effect) -> None:
        """Carries out one effect of the session's core."""
        match effect:
            case Start():
                self._start(effect.assign)
            case Kill():
                if attempt := self._attempts.get(effect.lease_id):
                    log.info("%s: killed: %s", attempt.lease.trial, effect.reason)
                    attempt.kill(fenced=effect.fenced)
                if effect.fenced:
                    self._retention.over(effect.lease_id)
            case Fence():
                if attempt := self._attempts.get(effect.lease_id):
                    attempt.fence()
                self._retention.over(effect.lease_id)
            case Decide():
                if attempt := self._attempts.get(effect.lease_id):
                    attempt.decide(effect.report_sequence, effect.decision)
                pinned = effect.decision.pinned
                self._cleaning.prune(
                    [self._retention.decided(effect.lease_id, effect.report_sequence, pinned)]
                )
                if effect.decision.action != event_pb2.DECISION_ACTION_CONTINUE:
                    # This report ends the lease: checkpoints saved after it prove nothing.
                    self._retention.over(effect.lease_id)
            case Leave():
                if attempt := self._attempts.get(effect.lease_id):
                    log.info("%s: leaves at its next report: %s", attempt.lease.trial, effect.reason)
                    attempt.reports.leave_soon()
            case Withdrawn():
                self._leaving.by_user(effect)
            case Forgive():
                self._tasks.create_task(asyncio.to_thread(self._health.forgive, effect.devices))
            case Acked():
                self._retention.acked(effect.sequences)
                self._courier.acknowledged()
            case Forget():
                self._courier.forget(effect.sequences)
            case Reject():
                self._courier.reject(effect.sequence, effect.reason)
                self._courier.acknowledged()  # there is nothing more to wait for
            case ReadLog():
                self._tasks.create_task(self._read_log(effect.ask), name="read a log")
            case Welcomed():
                self._succession.taken()
                self._store_watch.ordered(effect.store)
            case Finish():
                pass
            case _:
                assert_never(effect)

    async def _read_log(self, ask: worker_pb2.ReadLog) -> None:
        attempt = self._attempts.get(ask.lease.lease_id)
        self._session.say_log(await self._logs.read(ask, attempt))

    async def telemetry(self) -> Sequence[worker_pb2.DeviceTelemetry]:
        """Measures the devices and the disk."""
        loop = asyncio.get_running_loop()
        attempts = list(self._attempts.values())
        self._no_room = await loop.run_in_executor(self._meter, who_fills, self._settings.home, attempts)
        self._rejected = await loop.run_in_executor(self._meter, self._courier.outbox.rejected)
        await self._ground.look()
        await loop.run_in_executor(self._meter, self._health.look)
        return await loop.run_in_executor(self._meter, self._devices.telemetry)

    def _figures(self) -> dict[str, float]:
        """For metrics; called from another thread."""
        core = self._courier.core
        return {
            "connected": float(core.phase is Phase.OPEN),
            "slots": len(self._devices.devices),
            "slots_failed": len(core.defects),
            "trials": len(self._attempts),
            "outbox_messages": core.unacknowledged,
            "logs_pending": len(self._keeper.pending),
            **self._mps.figures(),
            "in_trouble": float(bool(self.trouble())),
        }

    async def _device_failure(self, slots: Sequence[int], words: str) -> str:
        """Asks in a thread of its own, because the measuring thread may hang in the driver. Gives up after a
        while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRIVER_S):
                return await asyncio.to_thread(self._health.judge, slots, words)
        return ""

    def trouble(self) -> str:
        """Says which disk or store cannot be written to, and what is wrong with its certificate."""
        hindered: list[Attempt | Bundle] = [*self._attempts.values(), *self._bundles.values()]
        renewal = self._renewal.trouble if self._renewal is not None else ""
        own = [renewal, self._ground.trouble, self._store_watch.trouble, self._courier.outbox.trouble]
        found = [*own, self._no_room, *(one.trouble for one in hindered)]
        return TROUBLE.kept("; ".join(_each_once(found)))

    def rejected(self) -> str:
        """Says which rejected messages are kept, or nothing."""
        return TROUBLE.kept(self._rejected)

    def reused(self) -> str:
        """Says how processes ran several trials, or nothing."""
        return TROUBLE.kept(self._standbys.counts.in_words())

    def mps(self) -> str:
        """Says how trials share GPUs, or nothing."""
        return self._mps.words

    def beat(self) -> None:
        """Deletes the checkpoints that are superseded according to the last heartbeats."""
        self._cleaning.prune(self._retention.tick())

    def _end_those_on(self, index: int, why: str) -> None:
        """Ends the trials that are still on a slot that was taken back; nobody is charged for it."""
        for attempt in list(self._attempts.values()):
            if index in attempt.assign.grant.slots:
                attempt.fail(Ending(outcome=worker_pb2.EXIT_OUTCOME_RELEASED, error=why))

    def _ask_to_leave(self, leases: Collection[str], why: str) -> None:
        """Asks trials to save at their next report, and ends them then. Nobody is charged for it. May be repeated."""
        for attempt in list(self._attempts.values()):
            if not {attempt.lease.lease_id, attempt.host.mark}.isdisjoint(leases):
                attempt.leave_when_saved(Ending(outcome=worker_pb2.EXIT_OUTCOME_RELEASED, error=why))

    def _let_stay(self, leases: Collection[str]) -> None:
        """They need not leave after all. May be repeated."""
        for attempt in list(self._attempts.values()):
            if not {attempt.lease.lease_id, attempt.host.mark}.isdisjoint(leases):
                attempt.need_not_leave()

    def _busy_folders(self) -> set[str]:
        """The folders of the studies whose trials run here."""
        return {folder_of(attempt.assign).split("/")[1] for attempt in self._attempts.values()}

    # Attempts.

    def _start(self, assign: worker_pb2.Assign) -> None:
        try:
            folder_of(assign)
            host = self._host_of(assign)
        except ValueError as error:
            self._tasks.create_task(self._refuse(assign.lease, str(error)))
            return
        attempt = Attempt(assign, host, self._place)
        self._attempts[assign.lease.lease_id] = attempt
        self._leaving.came()
        log.info("%s: assigned on slot %s", assign.lease.trial, list(assign.grant.slots))
        self._tasks.create_task(self._run(attempt), name=f"attempt {assign.lease.lease_id}")
        if self._stopping.is_set() or self._leaving.drained:
            attempt.stop(0.0, self._leaving.drained)

    def _host_of(self, assign: worker_pb2.Assign) -> Host:
        """What runs the lease's program; the slots of its grant are taken once. Raises `ValueError`."""
        grant = assign.grant
        if grant.seats > 1 and grant.id in self._bundles:
            return self._bundles[grant.id]
        if grant.seats > 1 and not grant.id:
            raise ValueError(f"grant.id is empty: a grant of {grant.seats} seats needs one")
        turn = self._slots.join(grant.slots, grant.milli or WHOLE)
        if grant.seats <= 1:
            return Alone(assign, turn, self._place)
        bundle = self._bundles[grant.id] = Bundle(assign, turn, self._place)
        self._tasks.create_task(self._run_bundle(bundle, grant.id), name=f"bundle {grant.id}")
        return bundle

    async def _run_bundle(self, bundle: Bundle, grant_id: str) -> None:
        try:
            await bundle.live()
        finally:
            del self._bundles[grant_id]
            self._leaving.gone()

    async def _run(self, attempt: Attempt) -> None:
        lease_id = attempt.lease.lease_id
        try:
            await attempt.run()
        finally:
            self._attempts.pop(lease_id, None)
            self._retention.over(lease_id)
            self._leaving.gone()

    async def _refuse(self, lease: event_pb2.LeaseRef, error: str) -> None:
        log.error("%s: refused: %s", lease.trial, error)
        await self._courier.post_exit(
            worker_pb2.Exited(lease=lease, outcome=worker_pb2.EXIT_OUTCOME_UNREACHED, error=error)
        )

    async def _sweep(self) -> None:
        """Deletes leftover uploads once the store is available; while it is away, they cannot be found."""
        await self._store_watch.until_there()
        await self._cleaning.sweep()

    async def _cut_logs(self) -> None:
        """Keeps every trial's log within its bound."""
        while True:
            await asyncio.sleep(_LOG_LOOK_S)
            await asyncio.to_thread(_shorten, [*self._attempts.values(), *self._bundles.values()])


def _shorten(writers: Sequence[Attempt | Bundle]) -> None:
    for writer in writers:
        try:
            writer.shorten_log()
        except (OSError, ValueError) as error:  # a full disk; it is closed by now
            log.debug("a log is not cut: %s", error)


def _each_once(texts: Sequence[str]) -> list[str]:
    """The texts in order, without those that repeat another one in full: a trial that cannot store its checkpoint
    quotes what the worker itself says about the store."""
    told: list[str] = []
    for text in texts:
        if text and not any(other in text for other in told):
            told.append(text)
    return told


def _estate(settings: WorkerSettings) -> Estate:
    """Prepares the place where trials of another user live; says what may not work there."""
    estate = Estate(settings.homes_dir.absolute(), settings.tmp_dir.absolute(), family(settings.home))
    if (wrong := estate.too_long()) and not is_named("TMPDIR", settings.pass_env):
        log.warning("%s", wrong)
    return estate


def _identity(settings: WorkerSettings, devices: Sequence[worker_pb2.Device], held: Home) -> Identity:
    try:
        ours = version("headrace")
    except PackageNotFoundError:  # run from a source tree
        ours = ""
    return Identity(
        worker=settings.name,
        incarnation=uuid.uuid4().hex,
        devices=tuple(devices),
        cpus=len(os.sched_getaffinity(0)),
        host=socket.gethostname(),
        home=held.identity,
        home_lock=held.lock,
        labels=settings.labels,
        version=ours,
        log_dir=str(settings.log_dir.absolute()),
    )
