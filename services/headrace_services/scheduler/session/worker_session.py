"""One worker's stream, from Hello to the end."""

import asyncio
import logging
import os
import random
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, perf_counter

from headrace import bounds
from headrace.bounds.sessions import TROUBLE
from headrace.errors import (
    LEASE_GONE,
    DatabaseUnavailableError,
    DrainingError,
    HeadraceError,
    InvalidFieldError,
    StudyNotFoundError,
)
from headrace.protocol import SPOKEN
from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler import measures
from headrace_services.scheduler.core.inputs import (
    Accepted,
    Assignment,
    Cancellation,
    ExitedArrived,
    Order,
    Preemption,
    Stale,
)
from headrace_services.scheduler.core.records import Lease, Trial
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.submissions import Submission
from headrace_services.scheduler.session import in_flight, messages, refusals
from headrace_services.scheduler.session.heartbeats import Heartbeats
from headrace_services.scheduler.session.in_flight import InFlight
from headrace_services.scheduler.session.known_studies import KnownStudies
from headrace_services.scheduler.session.loads import Loads
from headrace_services.scheduler.session.log_asks import LogAsks
from headrace_services.scheduler.session.machine import Machine
from headrace_services.scheduler.session.outgoing import Outgoing, Write
from headrace_services.scheduler.session.proofs import Proofs
from headrace_services.scheduler.session.reconciler import LeaseReconciler
from headrace_services.scheduler.session.refusals import Durable
from headrace_services.scheduler.store import checkpoint_stores, workers
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.heartbeats import Beat
from headrace_services.scheduler.store.lineage import RESTORED

log = logging.getLogger(__name__)

REPLICA = f"{socket.gethostname()}:{os.getpid()}"
"""The name of this replica in its workers' logs."""
_NO_STUDY = "its study no longer exists"
_NOT_HELD = "this worker no longer holds it: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How often workers send heartbeats, how long they may be silent, and how long a stream lasts, in seconds."""

    heartbeat_s: float = 3.0
    lease_ttl_s: float = 15.0
    stream_age_s: float = 900.0
    """About when a worker is asked to reconnect, so that streams spread over the replicas again."""
    drain_grace_s: float = 10.0
    """How long a worker that is asked to go may still receive answers."""


class WorkerSession:
    """The session with one worker. Made after its Hello was written."""

    def __init__(
        self,
        hub: Hub,
        heartbeats: Heartbeats,
        loads: Loads,
        studies: KnownStudies,
        proofs: Proofs,
        timing: Timing,
        greeting: workers.Greeting,
        worker_id: int,
        number: int,
        store: checkpoint_stores.Known | None = None,
    ) -> None:
        self.worker_id = worker_id
        self._hub = hub
        self._heartbeats = heartbeats
        self._loads = loads
        self._timing = timing
        self._name = greeting.name
        self._incarnation = greeting.incarnation
        self._number = number
        self._reconciler = LeaseReconciler()
        self._told_to_leave: set[str] = set()
        self._studies = studies
        self._outgoing = Outgoing(
            greeting.name, studies, proofs, patience_s=timing.lease_ttl_s, defective=hub.quarantine
        )
        self._logs = LogAsks(greeting.name, self._outgoing)
        self._in_flight = InFlight(caught_up=self.drain)
        self._look_again = asyncio.Event()
        self._beat = asyncio.Event()
        self._trouble = self._rejected = self._reused = self._mps = ""
        self._machine = Machine(hub.engine, greeting, worker_id, number, store=store, say=self._outgoing.put)
        self._welcomed = False
        self._heard_at = monotonic()
        self._is_taking_in = False
        self.unacknowledged = 0
        """How many durable messages the worker keeps, as its last heartbeat said."""

    # --- called from outside the session ---------------------------------------------------------------

    def order(self, order: Order) -> None:
        """Send an assignment or a cancellation. Before Welcome nothing may be sent; the rows make up for it."""
        if not self._welcomed:
            self.look_again()
            return
        match order:
            case Assignment():
                self._reconciler.grant(order.lease.id)
            case Cancellation():
                self._reconciler.end(order.lease.id)
            case Preemption():
                self._told_to_leave.add(order.lease.id)
        self._outgoing.put(order)

    async def read_log(self, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        """Ask the worker for a part of a log. Raises WorkerAwayError."""
        return await self._logs.ask(ask)

    @property
    def to_say(self) -> int:
        """How many messages wait to be written."""
        return self._outgoing.waiting

    def look_again(self) -> None:
        """Compare what the worker holds with the rows, soon."""
        self._look_again.set()

    def is_heard(self, within_s: float) -> bool:
        """Whether a message of the worker arrived this recently, or is being handled.

        Later messages are unread meanwhile, so the rows may not show yet that the worker lives.
        """
        return self._is_taking_in or monotonic() - self._heard_at < within_s

    def drain(self) -> None:
        """Ask the worker to connect to another replica."""
        grace = messages.duration(self._timing.drain_grace_s)
        self._outgoing.put(worker_pb2.SessionResponse(drain=worker_pb2.Drain(grace=grace)))

    # --- the stream ------------------------------------------------------------------------------------

    async def run(
        self,
        hello: worker_pb2.Hello,
        incoming: AsyncIterator[worker_pb2.SessionRequest],
        write: Write,
    ) -> None:
        """Serve the stream until it ends, on either side."""
        self._machine.wishes.withdrawn = hello.withdrawn
        await self._welcome(hello)
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._outgoing.write_to(write)),
                tasks.create_task(self._reconcile_when_asked()),
                tasks.create_task(self._note_heartbeats()),
                tasks.create_task(self._outgoing.cut_off_when_slow()),
                tasks.create_task(self._grow_old()),
            ]
            try:
                async for request in incoming:
                    self._is_taking_in = True
                    await self._receive(request, tasks)
                    self._is_taking_in, self._heard_at = False, monotonic()
                await self._say_the_rest()
            finally:
                self._logs.close()
                for helper in helpers:
                    helper.cancel()

    async def _welcome(self, hello: worker_pb2.Hello) -> None:
        """Name the worker's leases that are still its own, and send those that it does not know."""
        said = self._reconciler.said = {ref.lease_id for ref in hello.held}
        held = await self._held_by_rows()
        live = {h.lease.id: h for h in held}
        self._welcomed = True
        self._outgoing.put(
            worker_pb2.SessionResponse(
                welcome=worker_pb2.Welcome(
                    heartbeat_interval=messages.duration(self._timing.heartbeat_s),
                    lease_ttl=messages.duration(self._timing.lease_ttl_s),
                    held=[ref for ref in hello.held if ref.lease_id in live],
                    scheduler=REPLICA,
                    protocol=SPOKEN.newest,
                    oldest_protocol=SPOKEN.oldest,
                    version=SPOKEN.release,
                    store=self._machine.store_order(),
                )
            )
        )
        await self._settle(held, said)

    async def _receive(self, request: worker_pb2.SessionRequest, tasks: asyncio.TaskGroup) -> None:
        kind = request.WhichOneof("message")
        if kind == "heartbeat":
            self._in_flight.heartbeat()
            answer = worker_pb2.Ack(heartbeat=request.heartbeat.sequence)
            self._outgoing.put(worker_pb2.SessionResponse(ack=answer))
            self._trouble = TROUBLE.kept(request.heartbeat.trouble)
            self._rejected = TROUBLE.kept(request.heartbeat.rejected)
            self._reused = TROUBLE.kept(request.heartbeat.reused)
            self._mps = TROUBLE.kept(request.heartbeat.mps)
            self._beat.set()
            if await self._machine.heard(request.heartbeat):
                self.look_again()
            if await self._machine.try_again():
                self._hub.wake_waiting_studies()
            if wrong := bounds.violations(request):  # the worker lives, whatever else is in the message
                log.warning("worker '%s': %s", self._name, wrong[0])
                return
            self.unacknowledged = request.heartbeat.unacknowledged
            self._loads.note(self.worker_id, request.heartbeat.telemetry)
            if self._reconciler.heartbeat({ref.lease_id for ref in request.heartbeat.held}):
                self.look_again()
            return
        if kind == "reports":
            for report in request.reports.reports:
                await self._receive_durable(report, tasks)
        elif kind in ("report", "restored", "exited"):
            await self._receive_durable(getattr(request, kind), tasks)
        elif kind == "log_chunk":
            if not bounds.violations(request):
                self._logs.answered(request.log_chunk)
        else:
            log.warning("worker '%s' sent %s in mid-stream; ignored", self._name, kind)

    async def _receive_durable(self, message: Durable, tasks: asyncio.TaskGroup) -> None:
        arrived = perf_counter()
        named = messages.trial_of(message.lease)
        study_id = await self._studies.id_of(named[0]) if named else None
        if named is None or study_id is None:
            self._is_over(message, _NO_STUDY)
            return
        if await self._in_flight.enter(study_id):
            tasks.create_task(self._submit(study_id, named[1], message, arrived))
        else:
            log.warning(
                "study %s accepts nothing: worker '%s' will be asked to send its messages again",
                study_id,
                self._name,
            )

    async def _submit(self, study_id: int, number: int, message: Durable, arrived: float) -> None:
        """Put a durable message into its study's cycle; answer and acknowledge it when it is committed.

        A message that cannot be accepted costs its own trial the lease, and affects no other trial.
        """
        try:
            checked = messages.checked_input(message, number, self.worker_id)
            submission = Submission(input=checked, stream=self._in_flight)
            if isinstance(message, worker_pb2.Exited):
                await self._machine.ended(message)
            settled = await self._hub.submit(study_id, submission)
        except StudyNotFoundError:  # it was deleted
            self._studies.forget(study_id)
            self._is_over(message, _NO_STUDY)
            return
        except DrainingError:
            return  # the worker sends it again, to another replica
        except DatabaseUnavailableError as error:
            self._later(study_id, error)
            return
        except Exception as error:
            kind = type(message).__name__
            if isinstance(error, InvalidFieldError):
                log.warning("%s of worker '%s' is out of bounds: %s", kind, self._name, error)
            else:
                log.exception("could not process %s of worker '%s'", kind, self._name)
            await self._refuse(study_id, number, message, error)
            return
        finally:
            await self._in_flight.leave(study_id)
        measures.ANSWERS.labels(type(message).__name__.lower()).observe(perf_counter() - arrived)
        match settled.outcome:
            case Stale(why=why):
                self._is_over(message, _NOT_HELD.format(why or LEASE_GONE))
            case Accepted(decision=decision):
                if decision is not None:
                    self._decide(message, decision.action != "CONTINUE", messages.decision(decision))
                elif isinstance(message, worker_pb2.Exited):
                    self._reconciler.end(message.lease.lease_id)
                self._outgoing.acknowledge(message.sequence)
                # After the cycle: if the message waited before it, the next one would overtake it.
                with suppress(DatabaseUnavailableError):  # a later attempt shows it too
                    if await self._machine.reached(message):
                        self._hub.wake_waiting_studies()
            case _:
                raise AssertionError(f"{settled.outcome} is no answer to a worker")

    def _later(self, study_id: int, error: DatabaseUnavailableError) -> None:
        """Leave a message unanswered: the worker keeps it, and sends it again when it is asked to reconnect."""
        log.warning(
            "study %s accepts nothing: worker '%s' will be asked to send its messages again: %s",
            study_id,
            self._name,
            error,
        )
        self._in_flight.fall_behind(study_id)

    async def _refuse(self, study_id: int, number: int, message: Durable, error: Exception) -> None:
        """Refuse a message permanently, and end its lease first: otherwise its trial would wait for an answer for
        ever.

        If the lease cannot be ended either, the study itself is broken. The worker ends the trial anyway.
        """
        reason = refusals.reason(message, error)
        if not bounds.violations(message.lease):  # an out-of-bounds lease names none
            try:
                await self._end(study_id, number, message, refusals.outcome(error), reason)
            except DrainingError:
                return
            except DatabaseUnavailableError as away:
                self._later(study_id, away)
                return
        refused = worker_pb2.Refused(sequence=message.sequence, reason=reason)
        self._outgoing.put(worker_pb2.SessionResponse(refused=refused))
        self._is_over(message, reason)

    async def _end(self, study_id: int, number: int, message: Durable, outcome: str, reason: str) -> None:
        ended = ExitedArrived(
            lease_id=message.lease.lease_id,
            number=number,
            attempt=message.lease.attempt,
            sequence=None,
            worker_id=self.worker_id,
            outcome=outcome,
            error=reason,
        )
        try:
            await self._hub.submit(study_id, Submission(input=ended))
        except StudyNotFoundError:
            self._studies.forget(study_id)  # it was deleted, and the lease with it
        except (DrainingError, DatabaseUnavailableError):
            raise
        except HeadraceError:
            log.exception("could not end lease %s either", message.lease.lease_id)
        else:
            self._reconciler.end(message.lease.lease_id)

    def _decide(self, message: Durable, ends: bool, decision: event_pb2.Decision) -> None:
        if ends:
            self._reconciler.end(message.lease.lease_id)
        answer = worker_pb2.LeaseDecision(
            lease=message.lease, report_sequence=message.sequence, decision=decision
        )
        self._outgoing.put(worker_pb2.SessionResponse(decision=answer))

    def _is_over(self, message: Durable, why: str) -> None:
        """Answer a message whose lease is over: that is final, and the process has no right to run."""
        if not isinstance(message, worker_pb2.Exited):
            cancel = worker_pb2.Cancel(lease=message.lease, reason=why)
            self._outgoing.put(worker_pb2.SessionResponse(cancel=cancel))
        self._outgoing.acknowledge(message.sequence)

    # --- the session's own tasks -----------------------------------------------------------------------

    async def _say_the_rest(self) -> None:
        """The worker sends no more: answer what it has sent, so that it need not send it again elsewhere."""
        await self._in_flight.all_settled()
        await self._outgoing.written()

    async def _grow_old(self) -> None:
        """Ask the worker to reconnect after a while, each worker at a different time."""
        await asyncio.sleep(self._timing.stream_age_s * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
        self.drain()

    async def _note_heartbeats(self) -> None:
        """Write heartbeats, all that have arrived as one, and read what the worker should hold.

        Without the rows, an order that never reached this session (the replica that committed it died, or its
        notification was lost) would not show as a difference: neither side would know of the lease.
        """
        while True:
            await self._next_sign_of_life()
            beat = Beat(
                worker_id=self.worker_id,
                session=self._number,
                named=frozenset(self._reconciler.said),
                trouble=self._trouble,
                rejected=self._rejected,
                reused=self._reused,
                mps=self._mps,
            )
            try:
                noted = await self._heartbeats.note(beat)
            except DatabaseUnavailableError:
                continue  # the next heartbeat tries again, and nothing expires meanwhile
            if not noted.mine:
                raise SupersededError(f"a newer session speaks for worker '{self._name}'")
            self._reconciler.refresh(set(noted.leases))
            self._machine.wishes.tell(noted.wish)
            self._told_to_leave &= noted.leases
            self._tell_to_leave(noted.leaving)
            if noted.unasked:
                await self._machine.ask_again()

    async def _next_sign_of_life(self) -> None:
        """Wait for a heartbeat. While other messages are being handled, heartbeats wait behind them, and these
        messages count too."""
        while not self._beat.is_set():
            try:
                async with asyncio.timeout(self._timing.heartbeat_s):
                    await self._beat.wait()
            except TimeoutError:
                if self._is_taking_in:
                    break
        self._beat.clear()

    def _tell_to_leave(self, leaving: Iterable[tuple[Lease, str]]) -> None:
        """Send the requests to leave of trials whose order did not arrive here; once in each session."""
        for lease, why in leaving:
            if lease.id not in self._told_to_leave:
                self._told_to_leave.add(lease.id)
                self._outgoing.put(Preemption(worker_id=self.worker_id, lease=lease, reason=why))

    async def _reconcile_when_asked(self) -> None:
        while True:
            await self._look_again.wait()
            self._look_again.clear()
            said = self._reconciler.said
            try:
                held = await self._held_by_rows()
                self._tell_to_leave(await self._machine.heed())
            except DatabaseUnavailableError:
                continue  # the difference shows in the next heartbeats again
            await self._settle(held, said)

    async def _held_by_rows(self) -> list[workers.HeldLease]:
        """The worker's live leases. A study with an unreadable lease is quarantined, which ends its leases."""
        async with transaction(self._hub.engine) as conn:
            held, unreadable = await workers.held_leases(conn, self.worker_id)
        for lease in unreadable:
            self._hub.quarantine(lease.study_id, f"lease {lease.id} cannot be read: {lease.reason}")
        return held

    async def _settle(self, held: list[workers.HeldLease], said: set[str]) -> None:
        """Repeat what the worker missed: assignments that it does not run, cancellations of what it still runs."""
        live = {h.lease.id: h for h in held}
        missing, surplus = self._reconciler.settle(set(live), said)
        for lease_id in sorted(missing, key=list(live).index):
            await self._repeat(live[lease_id].lease, live[lease_id].trial)
        for lease_id in sorted(surplus):
            ref = event_pb2.LeaseRef(lease_id=lease_id)
            cancel = worker_pb2.Cancel(lease=ref, reason=_NOT_HELD.format(LEASE_GONE))
            self._outgoing.put(worker_pb2.SessionResponse(cancel=cancel))

    async def _repeat(self, lease: Lease, trial: Trial) -> None:
        if lease.incarnation == self._incarnation:
            self._outgoing.put(Assignment(worker_id=self.worker_id, trial=trial, lease=lease))
        else:
            # An earlier incarnation held the lease. If this one knew it, it would have named it: then it would
            # report it lost, in order, after what the trial still had to say. It has lost its memory, and the
            # trial with it. Or the database was restored from a copy, and no worker holds the lease
            # (`store.lineage`).
            why = f"worker '{self._name}' was restarted and knows nothing of the trial"
            if lease.incarnation == RESTORED:
                why = "the database was restored from a copy: what it issued before counts no more"
            exited = ExitedArrived(
                lease_id=lease.id,
                number=lease.number,
                attempt=lease.attempt,
                sequence=None,
                worker_id=self.worker_id,
                outcome="LOST",
                error=why,
            )
            try:
                async with asyncio.timeout(in_flight.PATIENCE_S):
                    await self._hub.submit(lease.study_id, Submission(input=exited))
            except (TimeoutError, DatabaseUnavailableError):  # the next heartbeats show the difference again
                log.warning("lease %s could not be ended: study %s accepts nothing", lease.id, lease.study_id)


class SupersededError(Exception):
    """A newer session of the same worker took over."""
