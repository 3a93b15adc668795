"""One lease, from its Assign to its Exited.

    the daemon's home and socket are there → fetch the checkpoint → the host prepares and runs it
    → none of its processes is left → Exited

This module owns what belongs to the lease: its folder, checkpoint, reports, log and end. The process belongs to
the attempt's host: its own process (`alone`), or one that it shares with other leases of its grant (`bundle`).

An attempt ends by itself, or for one of these reasons:

- a decision: the process has the template's grace to exit, then SIGTERM, then SIGKILL
- a Cancel or a fenced lease: SIGTERM at once, SIGKILL after the grace
- a silence longer than the template allows
- the daemon's own end

The first reason is the one reported; a later one can only make the end quicker.

If a disk is full, the attempt waits until there is room. A trial that was started and lost on such a machine again
and again would in the end be treated as one that kills its process.

`Exited` goes into the outbox after the last report of the process, so the scheduler never learns of an end before
the reports that preceded it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace.bounds.sessions import LOG_TAIL, WARNING
from headrace.checkpoints import (
    CheckpointError,
    CheckpointGoneError,
    CheckpointMissingError,
    CheckpointUnreadableError,
    StoreUnavailableError,
)
from headrace.checkpoints import (
    Place as CheckpointPlace,
)
from headrace.sources import SourceFile
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2, trial_pb2, worker_pb2
from headrace_worker.backoff import Backoff
from headrace_worker.code_cache import UnpreparedError
from headrace_worker.disk import clear_away, is_full, size_bytes, when_there_is_room
from headrace_worker.exits import Ending, Finished, LastSave, Verdict, not_started, without_folder
from headrace_worker.gangs import RankMissing
from headrace_worker.launch import file_name
from headrace_worker.logs import AttemptLog, shows
from headrace_worker.place import Place
from headrace_worker.plans import write_plan
from headrace_worker.program import AFTER_TERM_S, grace_s
from headrace_worker.programs import Prepared
from headrace_worker.reports import ReportInvalidError, Reports
from headrace_worker.retention import PruneOrder
from headrace_worker.retries import trial_key
from headrace_worker.run_as import pass_through
from headrace_worker.running_code import RunningCode
from headrace_worker.speakers import Speakers
from headrace_worker.stacks import STACKS_S, ask_for_stacks

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

# How long it may take to store a report that a process handed over before it died.
_LAST_REPORT_S = 60.0
LAST_SAVE_S = 60.0
"""How long it may take to store what a program saved when it ended. The trial's result does not depend on that."""
_FETCHES = 5
_FULL_DISK_CAP_S = 5.0
_STORED_TOLD = 64
_NOT_LOADED = (worker_pb2.EXIT_OUTCOME_NO_CHECKPOINT, worker_pb2.EXIT_OUTCOME_UNREADABLE_CHECKPOINT)


class ToldToEndError(Exception):
    """Something was interrupted because the attempt must end."""


class Host(Protocol):
    """What runs an attempt's program."""

    # Whether other attempts run in the same process.
    shared: bool
    # The lease id in the process's environment.
    mark: str
    # What the process runs.
    code: RunningCode

    @property
    def leader(self) -> int:
        """The running process; 0 if there is none."""
        ...

    @property
    def working_dir(self) -> str:
        """The folder in which the process runs, if that is not the folder that the template names."""
        ...

    def expect(self, attempt: "Attempt") -> None:
        """Accepts an attempt, before it is prepared."""
        ...

    async def run(self, attempt: "Attempt") -> Verdict:
        """Runs a prepared attempt; returns when none of its processes is left. Raises `ToldToEndError`, `OSError`."""
        ...

    def told(self, attempt: "Attempt", term_in_s: float, kill_in_s: float) -> None:
        """The attempt was told to end within this time. Called again if it must end sooner."""
        ...

    def finished(self, attempt: "Attempt") -> None:
        """The attempt's program said that it has ended."""
        ...

    def attached(self) -> None:
        """The program asked for its configuration."""
        ...

    def trains(self) -> None:
        """The program trains."""
        ...

    def heard(self) -> None:
        """The program showed a sign of life."""
        ...

    def leave(self, attempt: "Attempt") -> None:
        """None of the attempt's processes is left."""
        ...


class Attempt:
    """Carries out one lease. `run` returns when its Exited is in the outbox."""

    def __init__(self, assign: worker_pb2.Assign, host: Host, place: Place) -> None:
        self.assign = assign
        self.lease = assign.lease
        self.host = host
        self._place = place
        self._scratch = place.scratch_dir / file_name(assign.lease.lease_id)
        self._taken = place.taken_dir / file_name(assign.lease.lease_id)
        self._restore_dir: Path | None = None
        self.ending: Ending | None = None
        self.speakers = Speakers(
            is_gang=assign.grant.processes == spec_pb2.PROCESSES_PER_SLOT,
            leader=lambda: host.leader,
            end=lambda: host.finished(self),
        )
        # The processes that print their stacks, each with the signal that requests them.
        self.stacks: dict[int, int] = {}
        self.has_reported = False
        # Set when its program has asked for its configuration; before that, nothing is trained.
        self.begun = False
        self._drained = False
        # Set when a decision ended it; the program learns of that in the answer to a report.
        self.decided = False
        # What it left behind in its process, which therefore runs no other trial.
        self.left_behind = ""
        self._last_word: runtime_pb2.FinishRequest | None = None
        self._fenced = False
        # How it ends as soon as it has saved.
        self._when_saved: Ending | None = None
        self._restored = False
        # Set while it has a checkpoint to load and the scheduler has not been told that it is loaded.
        self._loads = assign.HasField("checkpoint")
        self._no_room = ""
        self._preparing = ""
        # Set while a failure would be due to the store or the checkpoint.
        self._restoring = False
        self._prepared = Prepared()
        # What is cancelled when the attempt must end.
        self._interruptible: set[asyncio.Task[Any]] = set()
        self._log: AttemptLog | None = None
        self._time_limit: asyncio.TimerHandle | None = None
        self.reports = Reports(
            assign,
            checkpoint_dir=self._scratch / "checkpoints",
            take_over=partial(place.take_over, into=self._taken),
            store=place.store,
            courier=place.courier,
            saved=self._saved,
            abandoned=place.abandoned,
            missing=self._rank_missing,
            code=lambda: host.code,
        )
        host.expect(self)

    @property
    def trouble(self) -> str:
        """What the trial is waiting for, or nothing."""
        return self._no_room or self._preparing or self.reports.trouble

    @property
    def in_bundle(self) -> bool:
        """Whether it shares its process with other attempts."""
        return self.host.shared

    # What the scheduler and the daemon tell the attempt.

    def decide(self, sequence: int, decision: event_pb2.Decision) -> None:
        """Passes a decision on; on PAUSE or STOP the trial has its grace to exit."""
        self.reports.decide(sequence, decision)
        if decision.action != event_pb2.DECISION_ACTION_CONTINUE:
            self.decided = self.decided or self.ending is None
            grace = grace_s(self.assign.template)
            ending = Ending(outcome=worker_pb2.EXIT_OUTCOME_RELEASED, decided=True)
            self._end(ending, grace, grace + AFTER_TERM_S)

    def kill(self, *, fenced: bool) -> None:
        """Ends the trial: the lease was cancelled or is no longer ours."""
        self._fenced = self._fenced or fenced
        self._end(Ending(outcome=worker_pb2.EXIT_OUTCOME_RELEASED), 0.0, grace_s(self.assign.template))

    def fence(self) -> None:
        """The lease is no longer ours, and the trial had already been told to end: nothing it still does counts."""
        self._fenced = True

    def stop(self, within_s: float, drained: str = "") -> None:
        """Ends the trial because the daemon ends. The lease is reported lost. A draining daemon gives it back
        instead, with the reason, which does not count as a loss."""
        self._drained = self._drained or bool(drained)
        error = drained or "the worker was stopped"
        ending = Ending(outcome=worker_pb2.EXIT_OUTCOME_LOST, error=error)
        self._end(ending, 0.0, min(within_s, grace_s(self.assign.template)))

    def leave_when_saved(self, ending: Ending) -> None:
        """Asks the trial to save at its next report, and ends it once that is in the outbox. May be repeated."""
        self._when_saved = ending
        self.reports.leave_soon()

    def need_not_leave(self) -> None:
        """Takes that back. It may still save at its next report. May be repeated."""
        self._when_saved = None

    def _time_is_over(self) -> None:
        """The trial has run for as long as the study allows: it is asked to save and exit, and is ended after its
        grace."""
        self.reports.leave_soon()
        grace = grace_s(self.assign.template)
        self._time_limit = asyncio.get_running_loop().call_later(grace, self._end_in_time)

    def _end_in_time(self) -> None:
        limit_s = self.assign.template.timeout.ToTimedelta().total_seconds()
        error = f"ran for {limit_s:g} s, the study's trial_timeout_s"
        ending = Ending(outcome=worker_pb2.EXIT_OUTCOME_TIMED_OUT, error=error)
        self._end(ending, self._show_stacks(), AFTER_TERM_S)

    def hangs(self, error: str) -> None:
        """Ends a trial that has been silent for too long, once its log shows where it hangs."""
        ending = Ending(outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=error)
        self._end(ending, self._show_stacks(), min(grace_s(self.assign.template), AFTER_TERM_S))

    def _show_stacks(self) -> float:
        """Asks its processes for their stacks; returns how long that may take."""
        asked = [ask_for_stacks(pid, number, self.host.leader) for pid, number in self.stacks.items()]
        return STACKS_S if any(asked) else 0.0

    def fail(self, ending: Ending) -> None:
        """Ends a trial that cannot continue; it has a moment to exit."""
        self._end(ending, 0.0, min(grace_s(self.assign.template), AFTER_TERM_S))

    # What the trial says.

    def attach(self) -> runtime_pb2.AttachResponse:
        """Answers with the configuration."""
        self.host.attached()
        self.begun = True
        answer = runtime_pb2.AttachResponse(
            assign=self.assign,
            restore_dir=str(self._restore_dir) if self._restore_dir else "",
            checkpoint_dir=str(self._scratch / "checkpoints"),
            plan_dir=str(self._plan_dir) if self.assign.template.HasField("plan") else "",
            leave_file=str(self.reports.leave_file),
        )
        assign = answer.assign
        assign.lease.ClearField("proof")  # a trial is no worker
        assign.next_milestone = self.reports.next_milestone
        if self.has_reported:
            assign.last_step = max(assign.last_step, self.reports.reported_step)
        if self.host.working_dir:
            assign.template.working_dir = self.host.working_dir
        return answer

    async def restored(self, request: runtime_pb2.RestoredRequest) -> None:
        """Tells the scheduler, once, that the checkpoint is loaded."""
        self.host.heard()
        if self._restored:
            return
        self._restored = True
        self.host.trains()
        message = worker_pb2.Restored(lease=self.lease, read_time=request.read_time)
        await self._place.courier.post(self.lease, worker_pb2.SessionRequest(restored=message))
        self._loads = False

    async def loaded(self, files: Iterable[SourceFile]) -> None:
        """Receives source files that the process has imported or is about to run."""
        self.host.heard()
        if self.host.code.add(files):
            await self.announce_code()

    async def announce_code(self) -> None:
        """Tells the scheduler what runs, if it must know before the first report."""
        code = self.host.code
        changed = self._place.told_code.record(self.assign.study_uid, code.files)
        if (changed or self.assign.guards_code) and (said := code.since(0)) is not None:
            message = worker_pb2.Restored(lease=self.lease, code=said)
            await self._place.courier.post(self.lease, worker_pb2.SessionRequest(restored=message))

    async def report(
        self, request: runtime_pb2.ReportRequest, durable: Callable[[], None] = lambda: None
    ) -> event_pb2.Decision:
        """Receives a report; see `Reports.report`."""
        self.has_reported = True
        self._loads = False
        self.host.heard()
        self.host.trains()
        try:
            return await self.reports.report(request, durable)
        finally:
            self.host.heard()  # the time that the answer took does not count as the trial's silence

    def finish(self, request: runtime_pb2.FinishRequest, pid: int | None = None) -> None:
        """Records what a process says about its own end. None means the attempt's own process."""
        said = Finished(
            error=request.error,
            traceback=request.traceback,
            rank=request.rank,
            exit_code=request.exit_code,
            last=_last_save(request),
            unsaved=request.unsaved,
            by_itself=request.by_itself,
            unreadable=request.unreadable_checkpoint and self._loads,
            exiting=request.exiting,
            infeasible=request.infeasible,
        )
        self._last_word = request
        self.speakers.says(said, pid)
        self.host.heard()

    @property
    def fenced(self) -> bool:
        """Whether the lease is no longer ours."""
        return self._fenced

    @property
    def finished(self) -> Finished | None:
        """What the program said about its end, if anything."""
        return self.speakers.counted

    # The life of the attempt.

    async def run(self) -> None:
        """Carries out the lease."""
        if self.assign.HasField("time_left"):
            left_s = self.assign.time_left.ToTimedelta().total_seconds()
            self._time_limit = asyncio.get_running_loop().call_later(left_s, self._time_is_over)
        try:
            verdict = await self._live()
            if not self._scratch.exists():
                verdict = without_folder(verdict)
        except (OSError, ValueError) as error:
            log.exception("%s: the attempt failed", self.lease.trial)
            verdict = Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, error=f"the worker failed: {error}")
        finally:
            self.speakers.close()
            if self._time_limit is not None:
                self._time_limit.cancel()
            self.host.leave(self)
            self._place.programs.release(self._prepared)
        if not self._fenced:
            stopped = self.ending is not None and self.ending.outcome == worker_pb2.EXIT_OUTCOME_LOST
            await self.reports.stored(AFTER_TERM_S if stopped else _LAST_REPORT_S)
        saved, unsaved = await self._store_last(verdict)
        stored = await asyncio.to_thread(self._stored_beside) if verdict.outcome in _NOT_LOADED else []
        await self.reports.close()
        tail = await asyncio.to_thread(self._close_log)
        if self.finished and not shows(tail, self.finished.traceback):
            tail = LOG_TAIL.kept(tail + self.finished.traceback)
        succeeded = verdict.outcome == worker_pb2.EXIT_OUTCOME_FINISHED
        unconnected = succeeded and not (self.begun or self.has_reported or self.finished)
        failed = verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED and not self.has_reported
        if failed or unconnected:
            self._place.retries.failed(trial_key(self.assign))
        else:
            self._place.retries.went_on(trial_key(self.assign))
        if self._drained and verdict.outcome == worker_pb2.EXIT_OUTCOME_LOST:
            verdict = replace(verdict, outcome=worker_pb2.EXIT_OUTCOME_RELEASED)
        log.info(
            "%s: %s %s", self.lease.trial, worker_pb2.ExitOutcome.Name(verdict.outcome).lower(), verdict.error
        )
        # Started at once and awaited at the end: on a full disk the attempt could not record its end before there
        # is room.
        clearing = asyncio.create_task(asyncio.to_thread(self._clear_away))
        await self._place.courier.post_exit(
            worker_pb2.Exited(
                lease=self.lease,
                outcome=verdict.outcome,
                error=verdict.error,
                log_tail=tail,
                exit_code=verdict.exit_code,
                out_of_memory=verdict.out_of_memory,
                device_words=verdict.device_words,
                device_failures=verdict.device_failures,
                shared_fault=verdict.shared_fault,
                unconnected=unconnected,
                checkpoint=saved,
                unsaved=WARNING.kept(unsaved),
                by_itself=succeeded and self.finished is not None and self.finished.by_itself,
                stored=stored,
                left_behind=WARNING.kept(self.left_behind),
                advice=self._place.import_shares.ended(
                    self.assign.study_uid, self.assign.template, self._last_word
                ),
            )
        )
        if self._log is not None:
            self._place.keep_log(self.assign, self._log)
        await clearing

    async def _store_last(self, verdict: Verdict) -> tuple[trial_pb2.CheckpointRef | None, str]:
        """Stores what the program saved when it ended, or says why that is not possible. The result does not
        depend on it, so an unavailable store is not waited for as it is with a report."""
        said = self.finished
        if said is None or self._fenced or verdict.outcome != worker_pb2.EXIT_OUTCOME_FINISHED:
            return None, ""
        if said.last is None:
            return None, said.unsaved
        patience_s = LAST_SAVE_S if self.ending is None else AFTER_TERM_S
        try:
            async with asyncio.timeout(patience_s):
                return await self.reports.store_last(said.last), ""
        except (ReportInvalidError, CheckpointError, OSError) as error:  # TimeoutError is an OSError
            trouble = self.reports.trouble or str(error)
            log.warning("%s: its last checkpoint is not stored: %s", self.lease.trial, trouble)
            return None, f"the state at its end, after step {said.last.step}, is not stored: {trouble}"

    async def _live(self) -> Verdict:
        try:
            if not self._place.ready.is_set():
                await self.unless_ended(self._place.ready.wait())
            if wrong := await self.unless_ended(self._place.stands()):
                return not_started(wrong, by_machine=True)
            await self._place.courier.outbox.hold(self.lease, self.host.mark)
            await self.unless_ended(self._with_room(self._make_scratch))
            await self.unless_ended(self._place.require_store())
            if self.assign.HasField("checkpoint"):
                self._restoring = True
                await self.unless_ended(self._restore())
                self._restoring = False
            return await self.host.run(self)
        except ToldToEndError:
            assert self.ending is not None
            return Verdict(outcome=self.ending.outcome, error=self.ending.error)
        except UnpreparedError as error:
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_UNPREPARED, error=str(error))
        except CheckpointGoneError as error:
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_NO_CHECKPOINT, error=str(error))
        except CheckpointUnreadableError as error:
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_UNREADABLE_CHECKPOINT, error=str(error))
        except (
            StoreUnavailableError,
            CheckpointMissingError,
        ) as error:  # CheckpointMissingError: it is in another store
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_STORE_AWAY, error=str(error))
        except (CheckpointError, OSError) as error:
            if self._restoring or self.begun:
                return Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, error=str(error))
            return not_started(str(error), by_machine=True)

    async def open_log(self, path: Path) -> AttemptLog:
        """Starts this attempt's part of the trial's log."""
        self._log = await self.unless_ended(
            self._with_room(lambda: self._place.open_log(path, self._header()))
        )
        return self._log

    async def prepare(self, output: AttemptLog) -> Prepared:
        """Fetches the program's code and installs what it requires, if the study asks for it. Raises
        `UnpreparedError`, `ToldToEndError` and `OSError`."""
        template = self.assign.template
        if template.code.digest or template.requirements:
            work = self._place.programs.prepare(self.assign, self._note_preparing, output.add)
            try:
                self._prepared = await self.unless_ended(work)
            except (UnpreparedError, OSError) as error:
                output.note(str(error))
                raise
        return self._prepared

    async def when_there_is_room(self, work: Callable[[], None]) -> None:
        """Runs work that writes to the disk, as soon as the disk has room. Raises `ToldToEndError`."""
        await self.unless_ended(self._with_room(work))

    async def unless_ended(
        self, work: Coroutine[Any, Any, _Result]
    ) -> _Result:  # Any: Coroutine's own parameters
        """Awaits, unless the attempt must end before; then the work is cancelled. Raises `ToldToEndError`."""
        if self.ending is not None:
            work.close()
            raise ToldToEndError
        task = asyncio.create_task(work)
        self._interruptible.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._interruptible.discard(task)
            if not task.done():  # the attempt itself is cancelled
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self.ending is not None:
            if not task.cancelled():
                task.exception()  # nobody needs it
            raise ToldToEndError
        return task.result()

    def taken_bytes(self) -> int:
        """The disk space that the trial's files in its folder use. Safe in any thread."""
        return size_bytes(self._scratch)

    def shorten_log(self) -> None:
        """Shortens a log that has grown too large. Safe in any thread."""
        if (found := self._log) is not None and not found.file.closed:
            found.shorten()

    def _close_log(self) -> str:
        """Closes the log; none of the trial's processes writes to it any more."""
        if self._log is None:
            return ""
        try:
            self._log.shorten()
            return self._log.tail()
        except OSError as error:  # the disk fails
            log.warning("%s: the end of its log cannot be read: %s", self.lease.trial, error)
            return ""
        finally:
            self._log.close()

    def _clear_away(self) -> None:
        for folder in (self._scratch, self._taken):
            clear_away(folder)

    def _note_preparing(self, what: str) -> None:
        self._preparing = f"{self.lease.trial}: {what}" if what else ""

    @property
    def log(self) -> AttemptLog | None:
        """This attempt's part of the trial's log; None before it has one."""
        return self._log

    @property
    def _plan_dir(self) -> Path:
        return self._scratch / "plan"

    def _make_scratch(self) -> None:
        (self._scratch / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._place.hand_over(self._scratch / "checkpoints")
        if self.assign.template.HasField("plan"):
            write_plan(self.assign.template.plan, self._plan_dir)
            self._place.hand_over(self._plan_dir)
        if self._place.user is not None:
            pass_through(self._scratch)

    async def _with_room(self, work: Callable[[], _Result]) -> _Result:
        return await when_there_is_room(work, self._note_room, Backoff(cap_s=_FULL_DISK_CAP_S))

    def _note_room(self, trouble: str) -> None:
        if trouble and not self._no_room:
            log.warning("%s: waits for disk space: %s", self.lease.trial, trouble)
        self._no_room = f"no disk space to start a trial: {trouble}" if trouble else ""

    async def _restore(self) -> None:
        folder = self._scratch / "restore"
        backoff = Backoff(cap_s=5.0)
        while True:
            try:
                await asyncio.to_thread(clear_away, folder)
                await asyncio.to_thread(self._place.store.fetch, self.assign.checkpoint, folder)
                await asyncio.to_thread(self._place.hand_over, folder)
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

    def _stored_beside(self) -> list[str]:
        """The other complete checkpoints, newest first, for when the assigned one could not be loaded."""
        place = CheckpointPlace.of(self.assign.checkpoint.uri)
        if place is None:
            return []
        try:
            names = self._place.store.list(place.trial)
        except OSError as error:
            log.warning("%s: its other checkpoints cannot be listed: %s", self.lease.trial, error)
            return []
        return [self._place.store.uri(place.trial, name) for name in names[: -_STORED_TOLD - 1 : -1]]

    def _end(self, ending: Ending, term_in_s: float, kill_in_s: float) -> None:
        if self.ending is None:
            self.ending = ending
            log.info("%s: told to end", self.lease.trial)
        self._place.courier.core.releasing(self.lease.lease_id)
        for task in self._interruptible:
            task.cancel()
        self.host.told(self, term_in_s, kill_in_s)

    def _rank_missing(self, missing: RankMissing) -> None:
        """A rank of the gang does not arrive and the others wait: the gang is ended as one."""
        outcome = worker_pb2.EXIT_OUTCOME_LOST if missing.writes else worker_pb2.EXIT_OUTCOME_FAILED
        self.fail(Ending(outcome=outcome, error=missing.text))

    def _saved(self, sequence: int, order: PruneOrder) -> None:
        if not self._fenced:  # else the scheduler resumes from an older checkpoint, which must stay
            self._place.saved(self.lease.lease_id, sequence, order)
        if self._when_saved is not None:
            self.fail(self._when_saved)

    def _header(self) -> str:
        start = f"from step {self.assign.resume_step}" if self._restore_dir else "from the start"
        slots = ",".join(str(index) for index in self.assign.grant.slots)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return f"{when} {self.lease.trial} attempt {self.lease.attempt} on slot {slots} {start}"


def _last_save(request: runtime_pb2.FinishRequest) -> LastSave | None:
    if not request.checkpoint_dir or request.error:
        return None
    return LastSave(
        checkpoint_dir=request.checkpoint_dir,
        step=request.step,
        save_time_s=request.save_time.ToTimedelta().total_seconds(),
    )
