"""One lease, from its Assign to its Exited.

    fetch the checkpoint → wait for the slots → spawn → supervise → the group is gone → Exited

A trial whose last attempt here failed waits for a while before it is spawned (`retries`).

An attempt ends by itself, or it is told to: by a decision (it has the template's grace to leave, then SIGTERM,
then SIGKILL), by a Cancel or a fenced lease (SIGTERM at once, SIGKILL after the grace), by a silence longer than
the template allows, or by the daemon's own end. The first reason given is the one reported; a later one can only
make it quicker.

Where a disk is full, the attempt waits until there is room: a trial that was started and lost again and again on such
a machine would in the end be taken for one that kills itself.

The slots are given to the next lease when no process of the group runs any more, and `Exited` goes into the
outbox after the last report of the process, so the scheduler never hears of an end before what came before it.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from headrace.bounds.sessions import LOG_TAIL
from headrace.v1 import event_pb2, runtime_pb2, trial_pb2, worker_pb2
from headrace_worker.backoff import Backoff
from headrace_worker.checkpoints import CheckpointError, CheckpointStore
from headrace_worker.checkpoints.retention import PruneOrder
from headrace_worker.courier import Courier
from headrace_worker.disk import clear_away, is_full, size_bytes, when_there_is_room
from headrace_worker.exits import Ending, Finished, Verdict, classify, on_failed_device
from headrace_worker.gangs import RankMissing
from headrace_worker.launch import Launch, launch_of
from headrace_worker.logs import AttemptLog, last_line, shows
from headrace_worker.process import CannotStartError, TrialProcess
from headrace_worker.reports import Reports
from headrace_worker.retries import Retries
from headrace_worker.slots import Turn
from headrace_worker.standby import Standbys

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

DEFAULT_GRACE_S = 30.0
# After SIGTERM, when the trial has had its grace already.
_AFTER_TERM_S = 5.0
# How long a report that its dead process had handed over may take to be stored.
_LAST_REPORT_S = 60.0
_FETCHES = 5
_FULL_DISK_CAP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What all attempts of a daemon share."""

    devices: tuple[worker_pb2.Device, ...]
    runtime: str
    log_dir: Path
    scratch_dir: Path
    environ: Mapping[str, str]
    # The machine's cores that trials may use.
    cores: int
    pass_env: tuple[str, ...]
    trial_umask: int | None
    store: CheckpointStore
    courier: Courier
    standbys: Standbys
    retries: Retries
    # Says which failure of a device ended a program on these slots that failed with these words, or nothing.
    device_failure: Callable[[Sequence[int], str], Awaitable[str]]
    # A report with a checkpoint is in the outbox.
    saved: Callable[[str, int, PruneOrder], None]
    # An upload goes on in its thread though nobody wants it any more.
    abandoned: Callable[["asyncio.Task[trial_pb2.CheckpointRef]", str], None]


class _ToldToEndError(Exception):
    """Something was interrupted because the attempt has to end."""


class Attempt:
    """Runs one lease. `run` returns when its Exited is in the outbox."""

    def __init__(self, assign: worker_pb2.Assign, turn: Turn, place: Place) -> None:
        self.assign = assign
        self.lease = assign.lease
        self._turn = turn
        self._place = place
        self._scratch = place.scratch_dir / _folder_name(assign.lease.lease_id)
        self._restore_dir: Path | None = None
        self._ending: Ending | None = None
        self._fenced = False
        self._finished: Finished | None = None
        self._restored = False
        self._no_room = ""
        # Set when there is something new to consider: an ending, an earlier deadline, a sign of life.
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._term_at = float("inf")
        self._kill_at = float("inf")
        self._heard_at = 0.0
        self._log: AttemptLog | None = None
        self._launch: Launch | None = None
        self._imported = False
        self._has_reported = False
        self.reports = Reports(
            assign,
            checkpoint_dir=self._scratch / "checkpoints",
            store=place.store,
            courier=place.courier,
            saved=self._saved,
            abandoned=place.abandoned,
            missing=self._rank_missing,
        )

    @property
    def trouble(self) -> str:
        """What keeps the trial waiting now, or nothing."""
        return self._no_room or self.reports.trouble

    # What the scheduler and the daemon tell it.

    def decide(self, sequence: int, decision: event_pb2.Decision) -> None:
        """Passes a decision on; with PAUSE or STOP the trial has its grace to leave."""
        self.reports.decide(sequence, decision)
        if decision.action != event_pb2.DECISION_ACTION_CONTINUE:
            grace_s = self._grace_s()
            self._end(Ending(outcome=worker_pb2.EXIT_OUTCOME_RELEASED), grace_s, grace_s + _AFTER_TERM_S)

    def kill(self, *, fenced: bool) -> None:
        """Ends the trial: the lease was cancelled or is not ours any more."""
        self._fenced = self._fenced or fenced
        self._end(Ending(outcome=worker_pb2.EXIT_OUTCOME_RELEASED), 0.0, self._grace_s())

    def fence(self) -> None:
        """The lease is not ours any more, and the trial was told to end before: nothing more of it counts."""
        self._fenced = True

    def stop(self, grace_s: float) -> None:
        """Ends the trial because the daemon ends; the lease is reported lost."""
        ending = Ending(outcome=worker_pb2.EXIT_OUTCOME_LOST, error="the worker was stopped")
        self._end(ending, 0.0, min(grace_s, self._grace_s()))

    # What the trial says.

    def attach(self) -> runtime_pb2.AttachResponse:
        """Answers with the configuration."""
        self._heard()
        if self._imported:
            self._stand_by()
        assign = self.assign
        return runtime_pb2.AttachResponse(
            trial=self.lease.trial,
            parameters=assign.parameters,
            restore_dir=str(self._restore_dir) if self._restore_dir else "",
            resume_step=assign.resume_step,
            last_step=assign.last_step,
            next_milestone=self.reports.next_milestone,
            max_steps=assign.max_steps,
            rungs=assign.rungs,
            seed=assign.seed,
            metric=assign.metric,
            further_metrics=assign.further_metrics,
            constraint_metrics=assign.constraint_metrics,
            checkpoint_dir=str(self._scratch / "checkpoints"),
            slots=assign.grant.slots,
            template=assign.template,
            slot_milli=assign.grant.milli,
            gpu_memory_bytes=assign.grant.memory_bytes,
        )

    async def restored(self, request: runtime_pb2.RestoredRequest) -> None:
        """Tells the scheduler, once, that the checkpoint is loaded."""
        self._heard()
        if self._restored:
            return
        self._restored = True
        self._stand_by()
        message = worker_pb2.Restored(lease=self.lease, read_time=request.read_time)
        await self._place.courier.post(self.lease, worker_pb2.SessionRequest(restored=message))

    async def report(self, request: runtime_pb2.ReportRequest) -> event_pb2.Decision:
        """Takes a report; see `Reports.report`."""
        self._has_reported = True
        self._heard()
        self._stand_by()
        try:
            return await self.reports.report(request)
        finally:
            self._heard()  # the time that the answer took was not the trial's

    def finish(self, request: runtime_pb2.FinishRequest) -> None:
        """Notes what the program says of its own end; the first word counts, and it has its grace to exit."""
        if self._finished is None:
            self._finished = Finished(
                error=request.error,
                traceback=request.traceback,
                rank=request.rank,
                exit_code=request.exit_code,
            )
            term_at = self._now() + self._grace_s()
            self._term_at = min(self._term_at, term_at)
            self._kill_at = min(self._kill_at, term_at + _AFTER_TERM_S)
        self._heard()

    # Its life.

    async def run(self) -> None:
        """Lives through the lease."""
        try:
            verdict = await self._live()
        except (OSError, ValueError) as error:
            log.exception("%s: the attempt failed", self.lease.trial)
            verdict = Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, error=f"the worker failed: {error}")
        finally:
            self._turn.leave()
        if not self._fenced:
            stopped = self._ending is not None and self._ending.outcome == worker_pb2.EXIT_OUTCOME_LOST
            await self.reports.stored(_AFTER_TERM_S if stopped else _LAST_REPORT_S)
        await self.reports.close()
        tail = await asyncio.to_thread(self._close_log)
        if self._finished and not shows(tail, self._finished.traceback):
            tail = LOG_TAIL.kept(tail + self._finished.traceback)
        if verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED and not self._has_reported:
            self._place.retries.failed(self.lease.trial)
        else:
            self._place.retries.went_on(self.lease.trial)
        log.info(
            "%s: %s %s", self.lease.trial, worker_pb2.ExitOutcome.Name(verdict.outcome).lower(), verdict.error
        )
        # At once, and waited for at the end: on a full disk its end could not be written before there is room.
        clearing = asyncio.create_task(asyncio.to_thread(clear_away, self._scratch))
        await self._place.courier.post_exit(
            worker_pb2.Exited(
                lease=self.lease,
                outcome=verdict.outcome,
                error=verdict.error,
                log_tail=tail,
                exit_code=verdict.exit_code,
            )
        )
        await clearing

    async def _live(self) -> Verdict:
        try:
            await self._place.courier.outbox.hold(self.lease)
            await self._unless_ended(self._with_room(self._make_scratch))
            if self.assign.HasField("checkpoint"):
                await self._unless_ended(self._restore())
            await self._unless_ended(self._turn.called.wait())
            await self._unless_ended(asyncio.sleep(self._place.retries.wait_s(self.lease.trial)))
            launch = launch_of(
                self.assign,
                devices=self._place.devices,
                runtime=self._place.runtime,
                log_dir=self._place.log_dir,
                environ=self._place.environ,
                cores=self._place.cores,
                pass_env=self._place.pass_env,
                umask=self._place.trial_umask,
            )
            self._log = await self._unless_ended(
                self._with_room(lambda: AttemptLog.open(launch.log_path, self._header()))
            )
        except _ToldToEndError:
            assert self._ending is not None
            return Verdict(outcome=self._ending.outcome, error=self._ending.error)
        except (CheckpointError, OSError) as error:
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, error=str(error))
        except ValueError as error:  # the template names no program
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=str(error))
        try:
            return await self._run_process(launch, self._log)
        except (CannotStartError, ValueError) as error:
            self._log.note(str(error))
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=str(error))

    def taken_bytes(self) -> int:
        """What the trial's files in its folder take of the disk. For any thread."""
        return size_bytes(self._scratch)

    def shorten_log(self) -> None:
        """Cuts a log that has grown too large. For any thread."""
        if (found := self._log) is not None and not found.file.closed:
            found.shorten()

    def _close_log(self) -> str:
        """The end of the log; nothing of the trial writes into it any more."""
        if self._log is None:
            return ""
        try:
            self._log.shorten()
            return self._log.tail()
        except OSError as error:  # a disk that fails
            log.warning("%s: the end of its log cannot be read: %s", self.lease.trial, error)
            return ""
        finally:
            self._log.close()

    def _make_scratch(self) -> None:
        (self._scratch / "checkpoints").mkdir(parents=True, exist_ok=True)

    async def _with_room(self, work: Callable[[], _Result]) -> _Result:
        return await when_there_is_room(work, self._note_room, Backoff(cap_s=_FULL_DISK_CAP_S))

    def _note_room(self, trouble: str) -> None:
        if trouble and not self._no_room:
            log.warning("%s: waits for room: %s", self.lease.trial, trouble)
        self._no_room = f"no room to start a trial: {trouble}" if trouble else ""

    async def _restore(self) -> None:
        folder = self._scratch / "restore"
        backoff = Backoff(cap_s=5.0)
        while True:
            try:
                await asyncio.to_thread(clear_away, folder)
                await asyncio.to_thread(self._place.store.fetch, self.assign.checkpoint, folder)
            except OSError as error:
                if is_full(error):
                    self._note_room(str(error))
                elif backoff.failures + 1 >= _FETCHES:
                    raise
                log.warning("%s: the checkpoint cannot be fetched yet: %s", self.lease.trial, error)
                await backoff.wait()
            else:
                self._note_room("")
                self._restore_dir = folder
                return

    async def _run_process(self, launch: Launch, attempt_log: AttemptLog) -> Verdict:
        self._heard_at = self._now()
        slots = tuple(self._turn.indices)
        self._launch = launch
        process = await self._place.standbys.take(launch, slots, attempt_log)
        self._imported = process is not None
        process = process or await TrialProcess.spawn(launch, attempt_log.file)
        try:
            await self._place.courier.outbox.started(self.lease.lease_id, process.pid, process.started)
            exit_code = await self._supervise(process)
        finally:
            await process.group_gone()
            self._launch = None  # a call that comes late prepares nothing
            self._place.standbys.idle(slots)
        tail = attempt_log.tail()
        verdict = classify(
            exit_code,
            ending=self._ending,
            finished=self._finished,
            last_line=last_line(tail),
            withheld=launch.withheld,
        )
        if verdict.outcome != worker_pb2.EXIT_OUTCOME_FAILED:
            return verdict
        said = self._finished or Finished()
        words = f"{tail}\n{said.traceback}\n{said.error}"
        return on_failed_device(verdict, await self._place.device_failure(slots, words))

    async def _supervise(self, process: TrialProcess) -> int:
        """Waits for the leader's end, and hastens it when it is time."""
        exited = asyncio.create_task(process.wait())
        try:
            while not exited.done():
                self._news.clear()
                now = self._now()
                if self._silence_ends_at() <= now and self._ending is None:
                    timeout_s = self.assign.template.report_timeout.ToTimedelta().total_seconds()
                    error = f"reported nothing for {timeout_s:g} s"
                    if not self._has_reported:
                        error += " since its start: it hangs, or report_timeout_s is too short for it (imports count)"
                    ending = Ending(outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=error)
                    self._end(ending, 0.0, min(self._grace_s(), _AFTER_TERM_S))
                if self._kill_at <= now:
                    process.send(signal.SIGKILL)
                    self._kill_at = self._term_at = float("inf")
                elif self._term_at <= now:
                    process.send(signal.SIGTERM)
                    process.send(signal.SIGCONT)  # a stopped process would not notice
                    self._term_at = float("inf")
                next_at = min(self._kill_at, self._term_at, self._silence_ends_at())
                news = asyncio.create_task(self._news.wait())
                try:
                    await asyncio.wait(
                        {exited, news},
                        timeout=None if next_at == float("inf") else max(0.0, next_at - now),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    news.cancel()
            return exited.result()
        finally:
            exited.cancel()

    def _silence_ends_at(self) -> float:
        template = self.assign.template
        if self._ending or self._finished or not template.HasField("report_timeout") or self.reports.pending:
            return float("inf")
        return self._heard_at + template.report_timeout.ToTimedelta().total_seconds()

    def _end(self, ending: Ending, term_in_s: float, kill_in_s: float) -> None:
        if self._ending is None:
            self._ending = ending
            log.info("%s: is told to end", self.lease.trial)
        now = self._now()
        self._term_at = min(self._term_at, now + term_in_s)
        self._kill_at = min(self._kill_at, now + kill_in_s)
        self._place.courier.core.releasing(self.lease.lease_id)
        self._ended.set()
        self._news.set()

    def _rank_missing(self, missing: RankMissing) -> None:
        """A rank of the gang does not come, and the others wait: it is ended as one."""
        outcome = worker_pb2.EXIT_OUTCOME_LOST if missing.writes else worker_pb2.EXIT_OUTCOME_FAILED
        self._end(Ending(outcome=outcome, error=missing.text), 0.0, min(self._grace_s(), _AFTER_TERM_S))

    def _stand_by(self) -> None:
        """The program trains now: it is time to start the process that the next trial here will find ready."""
        launch, self._launch = self._launch, None
        if launch is not None:
            self._place.standbys.prepare(launch, tuple(self._turn.indices))

    def _saved(self, sequence: int, order: PruneOrder) -> None:
        if not self._fenced:  # else the scheduler goes on from an older checkpoint, which must stay
            self._place.saved(self.lease.lease_id, sequence, order)

    def _heard(self) -> None:
        self._heard_at = self._now()
        self._news.set()

    def _grace_s(self) -> float:
        template = self.assign.template
        return template.grace.ToTimedelta().total_seconds() if template.HasField("grace") else DEFAULT_GRACE_S

    def _header(self) -> str:
        start = f"from step {self.assign.resume_step}" if self._restore_dir else "from the start"
        slots = ",".join(str(index) for index in self.assign.grant.slots)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return f"{when} {self.lease.trial} attempt {self.lease.attempt} on slot {slots} {start}"

    async def _unless_ended(
        self, work: Coroutine[Any, Any, _Result]
    ) -> _Result:  # Any: Coroutine's own parameters
        """Awaits, unless the attempt is told to end before; the work is then cancelled."""
        task = asyncio.create_task(work)
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or self._ended.is_set():
                raise _ToldToEndError
            return task.result()
        finally:
            ended.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _folder_name(lease_id: str) -> str:
    """A lease's folder: its id, as far as it is fit for a file name."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in lease_id)[:80] or "_"
