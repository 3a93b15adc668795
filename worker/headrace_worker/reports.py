"""The path of a report: checkpoint into the store, report into the outbox, answer to the trial.

In this order, each step is durable before the next: a report never refers to a checkpoint that may vanish, and a
trial never continues from a report that may. If a disk is full or the store does not answer, the trial waits and
the step is retried.

A trial that repeats a call gets the outcome of the first one, because its sequence identifies the report. Before
the milestone the answer is CONTINUE at once; from the milestone on, it is whatever the scheduler decides. The
milestone moves with each CONTINUE.

What a trial can put into the outbox is limited. Reports are handled one after another, and while `MAX_KEPT` of
them are not settled, the next one waits. So a trial that reports endlessly costs the others only a short queue,
and while no scheduler answers it keeps training for that many reports.
"""

import asyncio
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.bests import reached
from headrace.checkpoints import CheckpointInvalidError, CheckpointMeta, CheckpointStore
from headrace.errors import lease_gone
from headrace.grants import DEFAULT_RANK_PATIENCE_S
from headrace.steps import refusal
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2, trial_pb2, worker_pb2
from headrace_worker.backoff import Backoff
from headrace_worker.courier import Courier
from headrace_worker.disk import clear_away
from headrace_worker.exits import LastSave
from headrace_worker.gangs import Gang, PartMissingError, RankMissing
from headrace_worker.launch import folder_of
from headrace_worker.retention import PruneOrder, checkpoint_name
from headrace_worker.running_code import RunningCode

log = logging.getLogger(__name__)
_REMEMBERED = 8
MAX_KEPT = 4096
"""How many reports of one lease may be in the outbox."""
MAX_KEPT_BYTES = 32 << 20
MAX_AT_ONCE = 16
"""How many calls of one lease may wait for their answer. A script reports from one thread, a gang from one per
rank."""


class ReportInvalidError(ValueError):
    """The trial's report cannot be accepted; the text is for the user."""


class TooManyReportsError(Exception):
    """More calls of the trial are waiting for an answer than a script can make; the text is for the user."""


class LeaseOverError(Exception):
    """The lease ended while the trial was waiting for an answer."""


class _Said(NamedTuple):
    number: int
    metrics: str


class Reports:
    """All reports of one lease."""

    def __init__(
        self,
        assign: worker_pb2.Assign,
        *,
        checkpoint_dir: Path,
        take_over: Callable[[Path, Path], Path] = lambda folder, _: folder,
        store: CheckpointStore,
        courier: Courier,
        saved: Callable[[int, PruneOrder], None],
        abandoned: Callable[["asyncio.Task[trial_pb2.CheckpointRef]", str], None],
        missing: Callable[[RankMissing], None],
        backoff: Callable[[], Backoff] = Backoff,
        code: Callable[[], RunningCode] = RunningCode,
    ) -> None:
        self._assign = assign
        self._lease = assign.lease
        self._checkpoint_dir = checkpoint_dir
        self._take_over = take_over
        self._store = store
        self._courier = courier
        self._saved = saved
        self._abandoned = abandoned
        self._backoff = backoff
        # What the trial's process runs, and how many of its files the scheduler has been told about.
        self._code = code
        self._code_told: int | None = None
        self._in_order = asyncio.Lock()
        self._answers: OrderedDict[int, asyncio.Task[event_pb2.Decision]] = OrderedDict()
        self._undecided: dict[int, asyncio.Future[event_pb2.Decision]] = {}
        self._decided_through = 0
        self._told_to_leave: event_pb2.Decision | None = None
        ranks = len(assign.grant.slots) if assign.grant.processes == spec_pb2.PROCESSES_PER_SLOT else 1
        self._gang = Gang(ranks, missing, patience_s=_patience_s(assign.template))
        self._leave_soon = False
        self.leave_file = checkpoint_dir.parent / "leave"
        self._closed = False
        self._calls = 0
        self._reported_step = assign.resume_step
        self._last_number = 0
        # The numbers and metrics of the reports whose answers are remembered, by sequence and step.
        self._said: dict[tuple[int, int], _Said] = {}
        self.next_milestone = assign.next_milestone
        self.trouble = ""

    @property
    def reported_step(self) -> int:
        """The furthest step that was reported, or the step from which the trial resumes."""
        return self._reported_step

    @property
    def pending(self) -> bool:
        """Whether the trial is waiting for an answer now: its silence is then not its own."""
        return self._unanswered > 0

    @property
    def _unanswered(self) -> int:
        return sum(not answer.done() for answer in self._answers.values())

    async def report(
        self, request: runtime_pb2.ReportRequest, durable: Callable[[], None] = lambda: None
    ) -> event_pb2.Decision:
        """Handles a report and returns the decision. Cancelling the call does not cancel the report.

        `durable` is called when a new report is in the outbox, and may wait for its decision.

        Raises `ReportInvalidError`, `CheckpointInvalidError`, `TooManyReportsError`, or `LeaseOverError`.
        """
        if not 0 <= request.rank < self._gang.world:
            ranks = f"ranks 0 to {self._gang.world - 1}" if self._gang.world > 1 else "rank 0 alone"
            raise ReportInvalidError(f"rank {request.rank} is not one of this trial's: it has {ranks}")
        if self._calls >= MAX_AT_ONCE * self._gang.world or self._unanswered >= MAX_AT_ONCE:
            raise TooManyReportsError(
                f"{self._lease.trial} has {max(self._calls, self._unanswered)} reports in flight; "
                "wait for the answer to one before sending the next"
            )
        self._calls += 1
        try:
            return await self._answer_to(request, durable)
        finally:
            self._calls -= 1

    async def _answer_to(
        self, request: runtime_pb2.ReportRequest, durable: Callable[[], None]
    ) -> event_pb2.Decision:
        if request.rank:
            return await self._report_of_rank(request)
        number = self._number_of(request)
        answer = self._answers.get(number)
        if answer is None:
            answer = asyncio.create_task(self._process(request, number, durable), name=f"report {number}")
            self._answers[number] = answer
            self._last_number = max(self._last_number, number)
            for old in [s for s, task in self._answers.items() if task.done()][:-_REMEMBERED]:
                del self._answers[old]
            self._said = {key: said for key, said in self._said.items() if said.number in self._answers}
            await self._gang.arrived()
        try:
            return await self._outcome(answer)
        finally:
            self._gang.answered()

    def _number_of(self, request: runtime_pb2.ReportRequest) -> int:
        """The report's number in the attempt. A program may start several processes one after another, such as a
        script that restarts its training after a kill. Each of them counts its reports from 1."""
        if self._gang.world > 1:
            return request.sequence
        key, metrics = (request.sequence, request.step), repr(sorted(request.metrics.items()))
        said = self._said.get(key)
        if said is None:
            number = max(request.sequence, self._last_number + 1)
            self._said[key] = _Said(number, metrics)
            return number
        if said.metrics != metrics:
            raise ReportInvalidError(
                f"step {request.step} was already reported with different values: several processes report for this "
                "trial. Let only one report, such as rank 0, or use `processes: per_slot`"
            )
        return said.number

    async def _report_of_rank(self, request: runtime_pb2.ReportRequest) -> event_pb2.Decision:
        """Another rank of the gang: it gets the same answer as rank 0."""
        answer = await self._gang.report(
            request, self._answers, self._folder(request.checkpoint_dir), over=lambda: self._closed
        )
        if answer is not None:
            return await self._outcome(answer)
        if self._closed:
            raise LeaseOverError(lease_gone(self._lease.trial))
        return self._go_on()  # rank 0 is far ahead, so it was told to continue

    async def _outcome(self, answer: "asyncio.Task[event_pb2.Decision]") -> event_pb2.Decision:
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if answer.cancelled():
                raise LeaseOverError(lease_gone(self._lease.trial)) from None
            raise  # only the call was cancelled

    def decide(self, sequence: int, decision: event_pb2.Decision) -> None:
        """Applies the scheduler's decision on the report with this sequence in the outbox. A decision that ends
        the lease answers every waiting report: no other answer will come."""
        answered = [sequence]
        if decision.action != event_pb2.DECISION_ACTION_CONTINUE:
            self._told_to_leave = decision
            answered = [*self._undecided]
        elif decision.next_milestone and sequence >= self._decided_through:
            self.next_milestone = decision.next_milestone
        self._decided_through = max(self._decided_through, sequence)
        for one in answered:
            waiting = self._undecided.pop(one, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(decision)

    def leave_soon(self) -> None:
        """Others need the slots: the next report must be saved, and waits for a decision. A program that does not
        check for the file saves at the report after that."""
        self._leave_soon = True
        with suppress(OSError):  # a full disk
            self.leave_file.touch()

    async def stored(self, patience_s: float) -> None:
        """Waits, for at most this long, until everything that the ended trial reported is in the outbox."""
        await self._gang.gone()
        try:
            async with asyncio.timeout(patience_s), self._in_order:
                pass
        except TimeoutError:
            log.warning("%s: gave up a report that could not be stored", self._lease.trial)

    async def store_last(self, last: LastSave) -> trial_pb2.CheckpointRef:
        """Stores the checkpoint that a program saved when it ended; the caller limits the time.

        Raises `ReportInvalidError` and `CheckpointInvalidError`.
        """
        folder = self._folder(last.checkpoint_dir)
        if folder is None or not 0 < last.step <= self._reported_step:
            raise ReportInvalidError(
                f"step {last.step} was not reported: the last one was {self._reported_step}"
            )
        folder = await asyncio.to_thread(self._take_over, folder, self._checkpoint_dir)
        return await self._put(
            folder, self._name(self._last_number + 1, last.step), last.step, last.save_time_s
        )

    async def close(self) -> None:
        """Drops reports in progress: the process is gone."""
        self._closed = True
        await self._gang.arrived()
        for answer in self._answers.values():
            answer.cancel()
        await asyncio.gather(*self._answers.values(), return_exceptions=True)

    async def _process(
        self, request: runtime_pb2.ReportRequest, number: int, durable: Callable[[], None]
    ) -> event_pb2.Decision:
        folder = self._folder(request.checkpoint_dir)
        async with self._in_order:
            if self._told_to_leave is not None:
                return self._told_to_leave
            self._check_step(request.step)
            name = self._name(number, request.step)
            if folder:
                try:
                    await self._gang.gather(request.sequence, folder)
                except PartMissingError as error:
                    raise CheckpointInvalidError(str(error)) from None
                folder = await asyncio.to_thread(self._take_over, folder, self._checkpoint_dir)
            save_time_s = request.save_time.ToTimedelta().total_seconds()
            ref = await self._put(folder, name, request.step, save_time_s) if folder else None
            decided = self._leave_soon or self._ends_study(request)
            awaits = request.step >= self.next_milestone or (decided and ref is not None)
            running = self._code()
            files = len(running.files)
            report = worker_pb2.Report(
                lease=self._lease,
                step=request.step,
                metrics=request.metrics,
                checkpoint=ref,
                train_time=request.train_time,
                warnings=request.warnings,
                turn=request.turn if request.HasField("turn") else None,
                schedules=request.schedules if request.HasField("schedules") else None,
                returned=request.returned,
                code=running.since(self._code_told),
            )
            await self._courier.room_for(self._lease.lease_id, MAX_KEPT, MAX_KEPT_BYTES)
            sequence = await self._courier.post(
                self._lease,
                worker_pb2.SessionRequest(report=report),
                upload=ref.uri if ref else "",
                awaits_decision=awaits,
            )
            self._code_told = files
            decision: asyncio.Future[event_pb2.Decision] = asyncio.get_running_loop().create_future()
            if self._told_to_leave is not None:  # meanwhile, in answer to an earlier report
                decision.set_result(self._told_to_leave)
            elif awaits:
                self._undecided[sequence] = decision
            if ref:
                order = PruneOrder(
                    trial=folder_of(self._assign),
                    name=name,
                    keep=max(self._assign.checkpoints_kept, 1),
                    shared=self._assign.checkpoints_shared,
                )
                self._saved(sequence, order)
            if folder:
                await asyncio.to_thread(clear_away, folder)
        durable()
        if awaits or decision.done():
            answer = await decision
            if self._leave_soon:
                self._leave_soon = False
                self.leave_file.unlink(missing_ok=True)
            return answer
        if self._leave_soon:
            self.next_milestone = min(self.next_milestone, request.step + 1)
        return self._go_on()

    def _go_on(self) -> event_pb2.Decision:
        return event_pb2.Decision(
            action=event_pb2.DECISION_ACTION_CONTINUE, next_milestone=self.next_milestone
        )

    def _ends_study(self, request: runtime_pb2.ReportRequest) -> bool:
        """Whether the study may end with a report, judging by its value: the program has then saved it. Whether it
        meets the constraints is for the scheduler to say."""
        assign = self._assign
        if not assign.HasField("ends_study") or assign.metric not in request.metrics:
            return False
        maximize = assign.ends_study.goal == spec_pb2.GOAL_MAXIMIZE
        return reached(request.metrics[assign.metric], assign.ends_study.value, maximize=maximize)

    def _check_step(self, step: int) -> None:
        assign = self._assign
        refused = refusal(step, since=self._reported_step, rungs=assign.rungs, max_steps=assign.max_steps)
        if refused is not None:
            raise ReportInvalidError(str(refused))
        self._reported_step = max(self._reported_step, step)

    def _name(self, report: int, step: int) -> str:
        return checkpoint_name(
            attempt=self._lease.attempt, report=report, step=step, lease_id=self._lease.lease_id
        )

    def _folder(self, checkpoint_dir: str) -> Path | None:
        if not checkpoint_dir:
            return None
        folder = Path(checkpoint_dir)
        root, real = (Path(os.path.realpath(path)) for path in (self._checkpoint_dir, folder))
        # A link that refers to itself is left alone.
        if not folder.is_absolute() or root not in real.parents or real.is_symlink():
            raise ReportInvalidError(
                f"checkpoint_dir {checkpoint_dir!r} is not a folder below {self._checkpoint_dir}"
            )
        return folder

    async def _put(self, folder: Path, name: str, step: int, save_time_s: float) -> trial_pb2.CheckpointRef:
        meta = CheckpointMeta(
            trial=folder_of(self._assign),
            name=name,
            step=step,
            milestone=self.next_milestone,
            attempt=self._lease.attempt,
            save_time_s=save_time_s,
        )
        uri = self._store.uri(meta.trial, meta.name)
        await self._courier.outbox.begin_upload(uri, self._lease.lease_id)
        backoff = self._backoff()
        while True:
            upload = asyncio.create_task(asyncio.to_thread(self._store.put, folder, meta))
            try:
                ref = await asyncio.shield(upload)
            except asyncio.CancelledError:
                self._abandoned(upload, uri)  # the thread continues; what it makes is deleted afterwards
                raise
            except CheckpointInvalidError:
                await self._courier.outbox.end_upload(uri)
                raise
            except OSError as error:
                why = error.strerror or str(error)
                self._complain(f"checkpoints cannot be stored in {self._store.url}: {why}")
                await backoff.wait()
            else:
                if self.trouble:
                    log.warning("%s: the checkpoint is now stored", self._lease.trial)
                    self.trouble = ""
                return ref

    def _complain(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("%s: %s; the trial waits, trying again until it can", self._lease.trial, trouble)
        self.trouble = trouble


def _patience_s(template: spec_pb2.TrialTemplate) -> float:
    if not template.HasField("report_timeout"):
        return DEFAULT_RANK_PATIENCE_S
    return template.report_timeout.ToTimedelta().total_seconds()
