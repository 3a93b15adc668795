"""A bundle: the leases of one grant, its members, in one process.

    the first members are ready, the slots are free → spawn → turns: members join and leave → no member is left → end

A member is an ordinary attempt with its own reports, checkpoint, folder, log and Exited. This module holds what
the members share: the slots, the process, its log and its end.

Members join a running process (`turns`). When the last one was told to end, the process stays alive for LINGER_S,
because the scheduler gives a freed seat away at once. If other leases wait for its slots, it does not stay. Then
it is told to end, and has the template's grace. A member that arrives after that waits for the next process, on
the same slots.

Nobody is charged for a process that dies or fails, because nobody knows which member caused it: all members aboard
are lost, and the scheduler finds the culprit with smaller bundles. If it ran out of memory, the scheduler learns
how many members it had. An error that each member would meet, such as a model that cannot be fused, is charged to
all of them. A member is charged for what concerns it alone: its own error, or a report that cannot be accepted. A
process that reports success, or exits with it, has finished all members aboard.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from headrace import bundle_logs
from headrace.sources import SourceFile
from headrace.v1 import runtime_pb2, worker_pb2
from headrace_worker.attempt import Attempt
from headrace_worker.backoff import Backoff
from headrace_worker.disk import when_there_is_room
from headrace_worker.exits import Ending, Finished, Verdict, classify, for_all, not_started
from headrace_worker.launch import file_name, log_path
from headrace_worker.logs import AttemptLog, last_line, open_to_read, shows
from headrace_worker.memory import killed_for_memory, says_out_of_memory
from headrace_worker.mps import NotServedError
from headrace_worker.place import Place
from headrace_worker.process import CannotStartError, TrialProcess
from headrace_worker.program import AFTER_TERM_S, Program, grace_s, silence_s
from headrace_worker.programs import Prepared
from headrace_worker.retries import trial_key
from headrace_worker.running_code import RunningCode
from headrace_worker.seats import Seat, Seats
from headrace_worker.slots import Turn
from headrace_worker.turns import Turns

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
LINGER_S = 0.05
"""How long a process without members waits for the next one."""
_FULL_DISK_CAP_S = 5.0


class _EmptyError(Exception):
    """Something was interrupted because no member is left."""


class Bundle:
    """Runs the members of one grant, and starts their process."""

    shared = True

    def __init__(self, assign: worker_pb2.Assign, turn: Turn, place: Place) -> None:
        """Starts with the first lease of the grant."""
        self._first = assign
        self._template = assign.template
        self._slots = turn
        self._place = place
        self._pace = place.bubbles.pace(turn.indices)
        self._seats = Seats(assign.grant.seats)
        self._turns = Turns(self._seats)
        self._program: Program | None = None
        self._output: AttemptLog | None = None  # of the last process; members read its file to the end
        self._ending: Ending | None = None
        self._finished: Finished | None = None
        self._out_of_memory = self._of_each = False
        self._kills_before = 0
        self.mark = assign.lease.lease_id
        self.code = RunningCode(assign.template.code.digest)
        # Taken from any member, since all have the same template.
        self._prepared = Prepared()
        self.trouble = ""

    # What its members need from it (attempt.Host).

    @property
    def leader(self) -> int:
        """The members' process, while it runs."""
        return self._program.process.pid if self._program and self._program.process else 0

    def expect(self, attempt: Attempt) -> None:
        """Accepts a member that is about to join."""
        self._seats.add(attempt)

    async def run(self, attempt: Attempt) -> Verdict:
        """Offers a prepared member to the process; returns when the process has released it."""
        lease_id = attempt.lease.lease_id
        seat = self._seats.of(lease_id)
        await attempt.unless_ended(asyncio.sleep(self._place.retries.wait_s(trial_key(attempt.assign))))
        own = await attempt.open_log(log_path(self._place.log_dir, attempt.assign))
        self._prepared = await attempt.prepare(own)
        own.note(f"trains in a bundle of up to {self._seats.most} trials, which prints into {self._log_path}")
        if (program := self._program) and (process := program.process):
            await self._record(lease_id, process)
        assert seat is not None
        seat.log, seat.ready = own, True
        self._seats.changed()
        verdict = await seat.over
        words, trace = await asyncio.to_thread(self._said_of, seat)
        own.add(bundle_logs.copied(words) + trace)
        return await self._place.judged(verdict, self._slots.indices, words + trace)

    def told(self, attempt: Attempt, term_in_s: float, kill_in_s: float) -> None:
        """A member must end. The process learns of that in a turn, and ends with its last member."""
        seat = self._seats.of(attempt.lease.lease_id)
        if seat is not None and not seat.aboard:
            seat.let_go()
        if not attempt.decided:
            self._turns.forget(attempt.lease.lease_id)
        assert attempt.ending is not None
        stopping = attempt.ending.outcome == worker_pb2.EXIT_OUTCOME_LOST
        self._end_if_empty(term_in_s, kill_in_s, at_once=stopping)
        self._seats.changed()

    def finished(self, attempt: Attempt) -> None:
        """A member ended by itself, according to its program."""
        if seat := self._seats.of(attempt.lease.lease_id):
            seat.settle(classify(0, ending=attempt.ending, finished=attempt.finished, last_line=""))

    @property
    def working_dir(self) -> str:
        """The folder in which the process runs, if that is not the folder that the template names."""
        return self._program.own_dir if self._program else ""

    def attached(self) -> None:
        """The process was told about a member."""
        if self._program:
            self._program.attached()

    def trains(self) -> None:
        """The process trains."""
        if self._program:
            self._program.trains()

    def heard(self) -> None:
        """The process showed a sign of life."""
        if self._program:
            self._program.heard()

    def leave(self, attempt: Attempt) -> None:
        """A member has ended."""
        self._seats.remove(attempt.lease.lease_id)
        grace = grace_s(self._template)
        self._end_if_empty(grace, grace + AFTER_TERM_S)
        self._seats.changed()

    # What its process says.

    @property
    def runs(self) -> bool:
        """Whether a process of the bundle may call."""
        return self._program is not None

    async def attach(self) -> runtime_pb2.AttachBundleResponse:
        """Answers with the current members."""
        self.heard()
        self._note_output()
        answer = self._turns.attach()
        self._note_output()
        await self._announce_newcomers()
        return answer

    async def turn(self, request: runtime_pb2.TurnRequest) -> runtime_pb2.TurnResponse:
        """Receives a turn; see `Turns.turn`."""
        self.heard()
        try:
            answer = await self._turns.turn(request)
            await self._announce_newcomers()
            return answer
        finally:
            self._note_output()
            self.heard()  # the time that the answer took does not count as the process's silence

    async def loaded(self, files: Iterable[SourceFile]) -> None:
        """Receives source files that the process has imported or is about to run; all members aboard run them."""
        self.heard()
        if self.code.add(files):
            await self._announce(self._seats.aboard)

    async def _announce_newcomers(self) -> None:
        await self._announce([seat for seat in self._seats.aboard if not seat.announced])

    async def _announce(self, seats: Iterable[Seat]) -> None:
        async def announce(seat: Seat) -> None:
            await seat.attempt.announce_code()
            seat.announced = True

        await asyncio.gather(*map(announce, seats))

    def finish(self, request: runtime_pb2.FinishBundleRequest) -> None:
        """Records what the program says about its own end. The first word counts, and the program has its grace to
        exit."""
        if self._finished is None:
            self._finished = Finished(error=request.error, traceback=request.traceback)
            self._out_of_memory, self._of_each = request.out_of_memory, request.of_each
            grace = grace_s(self._template)
            self._close(grace, grace + AFTER_TERM_S)
        self.heard()

    # The life of the bundle.

    async def live(self) -> None:
        """Runs one process after another while there are members."""
        try:
            while self._seats.living:
                try:
                    await self._unless_empty(self._slots.called.wait())
                    await self._seats.until(lambda: self._seats.waiting or not self._seats.living)
                    if self._seats.waiting:
                        await self._run_process()
                except _EmptyError:
                    continue
        finally:
            self._slots.leave()

    def stop(self, within_s: float) -> None:
        """The daemon ends; the members are told separately."""
        self._end_if_empty(0.0, min(within_s, grace_s(self._template)), at_once=True)

    def shorten_log(self) -> None:
        """Shortens a log that has grown too large. Safe in any thread."""
        if (found := self._output) is not None and not found.file.closed:
            found.shorten()

    async def _run_process(self) -> None:
        self._turns = Turns(self._seats)
        self._ending = self._finished = None
        self._out_of_memory = self._of_each = False
        program = Program(
            self._template,
            tuple(self._slots.indices),
            self._place.standbys,
            pace=self._pace,
            excused=self._excused,
            silent=self._silent,
            succeeded=lambda: (
                self._ending is None and self._finished is not None and not self._finished.error
            ),
            let_go=lambda process: self._place.let_go(self.mark, process),
        )
        output = await self._unless_empty(self._open_log())
        self._output = output
        for seat in self._seats.waiting:  # the process is theirs, and so is a failure to start it
            seat.aboard = True
        self._note_output()
        self._program = program
        verdict = Verdict(outcome=worker_pb2.EXIT_OUTCOME_LOST, error="the worker failed")
        self._kills_before = self._place.kernel_kills.count()
        withheld: tuple[str, ...] = ()
        exit_code: int | None = None
        try:
            named = f"bundle {self._first.grant.id}"
            shared = await self._unless_empty(self._place.mps.join(self.mark, named, self._first.grant))
            launch = self._place.launch_of(self._first, self._prepared, shared)
            launch = replace(launch, log_path=output.path)
            withheld = launch.withheld
            self.code = RunningCode(self._template.code.digest)
            await self.loaded(await self._place.named_files(self._template, launch.args))
            exit_code = await program.run(launch, output, self._started, self._when_there_is_room)
            if program.left_behind:
                output.note(f"its process runs no other bundle: {program.left_behind}")
        except (CannotStartError, NotServedError, OSError, ValueError) as error:
            output.note(str(error))
            by_machine = isinstance(error, OSError | NotServedError) or (
                isinstance(error, CannotStartError) and error.by_machine
            )
            verdict = (
                not_started(str(error), by_machine=True) if by_machine else replace(verdict, error=str(error))
            )
        finally:
            self._program = None
            await self._turns.close()
            await self._settle(verdict, exit_code, withheld, program)
            self._place.mps.leave(self.mark)
            output.close()

    async def _settle(
        self, verdict: Verdict, exit_code: int | None, withheld: tuple[str, ...], program: Program
    ) -> None:
        """The process is gone, and so are all members that were aboard."""
        members = self._seats.aboard
        if exit_code is not None and self._output is not None:
            tail = await asyncio.to_thread(self._output.tail)
            self._out_of_memory |= self._ending is None and self._ran_out_of_memory(
                exit_code, last_line(tail)
            )
            verdict = classify(
                exit_code,
                ending=self._place.mps.ending_of(self.mark, self._ending),
                finished=self._finished,
                last_line=last_line(tail),
                withheld=withheld,
                waited_s=program.waited_s,
                signalled=program.signalled,
            )
            said = self._finished or Finished()
            words = f"{tail}\n{said.traceback}\n{said.error}"
            verdict = await self._place.judged(verdict, self._slots.indices, words, self.mark)
        succeeded = verdict.outcome == worker_pb2.EXIT_OUTCOME_FINISHED
        for seat in members:
            ending = seat.attempt.ending
            # As with a lone trial: success counts, even if a stopping daemon ended the process at that moment.
            if ending is not None and not (succeeded and ending.outcome == worker_pb2.EXIT_OUTCOME_LOST):
                seat.let_go()
            else:
                seat.settle(self._for_member(verdict, len(members)))
        self._seats.changed()

    def _for_member(self, verdict: Verdict, members: int) -> Verdict:
        if self._of_each and verdict.outcome == worker_pb2.EXIT_OUTCOME_FAILED:
            return verdict  # it is the program's fault, whoever is aboard
        return for_all(verdict, members=members, out_of_memory=self._out_of_memory)

    def _ran_out_of_memory(self, exit_code: int, last_words: str) -> bool:
        """Whether a process that said nothing about its end ran out of memory."""
        if self._finished is not None:
            return False
        said = exit_code != 0 and says_out_of_memory(last_words)
        return said or killed_for_memory(exit_code, self._kills_before, self._place.kernel_kills.count())

    async def _started(self, process: TrialProcess) -> None:
        for seat in self._seats.living:
            await self._record(seat.attempt.lease.lease_id, process)

    async def _record(self, lease_id: str, process: TrialProcess) -> None:
        await self._place.courier.outbox.started(lease_id, process.pid, process.started)

    def _end_if_empty(self, term_in_s: float, kill_in_s: float, *, at_once: bool = False) -> None:
        if self._seats.staying or self._program is None:
            return
        if at_once or self._turns.over or self._slots.wanted:
            self._close(term_in_s, kill_in_s)
            return
        turns = self._turns

        def lingered() -> None:
            if turns is self._turns and not self._seats.staying:
                self._close(term_in_s, kill_in_s)

        asyncio.get_running_loop().call_later(LINGER_S, lingered)

    def _close(self, term_in_s: float, kill_in_s: float) -> None:
        self._turns.over = True
        if self._program is not None:
            self._program.end_in(term_in_s, kill_in_s)
        self._seats.changed()

    def _excused(self) -> bool:
        return bool(self._ending or self._turns.over or self._turns.pending)

    def _silent(self) -> None:
        error = f"reported nothing for {silence_s(self._template, self._pace):g} s"
        self._ending = Ending(outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=error)
        self._close(0.0, min(grace_s(self._template), AFTER_TERM_S))

    def _note_output(self) -> None:
        """What the process prints from now on also belongs to those that have come aboard."""
        if self._output is not None and not self._output.file.closed:
            size = os.fstat(self._output.file.fileno()).st_size
            for seat in self._seats.aboard:
                if seat.printed_at is None:
                    seat.printed_at = size
                    if seat.log is not None:
                        seat.log.add(bundle_logs.aboard(self._output.path.name, size))

    def _said_of(self, seat: Seat) -> tuple[str, str]:
        """The end of what the process printed while a member was aboard, and why it failed if it did not print
        that."""
        if seat.printed_at is None or self._output is None:
            return "", ""
        try:
            with open_to_read(self._output.path, self._output.identity) as file:
                words = replace(self._output, file=file, offset=seat.printed_at).tail()
        except OSError as error:
            log.warning("%s: the end of its bundle's log cannot be read: %s", seat.attempt.lease.trial, error)
            return "", ""
        said = self._finished
        return words, "" if said is None or shows(words, said.traceback) else said.traceback

    @property
    def _log_path(self) -> Path:
        return log_path(self._place.log_dir, self._first).with_name(
            f"bundle-{file_name(self._first.grant.id)}.log"
        )

    async def _open_log(self) -> AttemptLog:
        slots = ",".join(map(str, self._slots.indices))
        when = datetime.now(UTC).isoformat(timespec="seconds")
        header = f"{when} bundle {self._first.grant.id} on slot {slots}"
        return await self._with_room(lambda: self._place.open_log(self._log_path, header))

    async def _when_there_is_room(self, work: Callable[[], None]) -> None:
        await self._unless_empty(self._with_room(work))

    async def _with_room(self, work: Callable[[], _Result]) -> _Result:
        def note(trouble: str) -> None:
            self.trouble = f"no disk space to start a bundle: {trouble}" if trouble else ""

        return await when_there_is_room(work, note, Backoff(cap_s=_FULL_DISK_CAP_S))

    async def _unless_empty(self, work: Coroutine[Any, Any, _Result]) -> _Result:  # Any: Coroutine's own
        """Awaits, unless the last member leaves before; then the work is cancelled."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._seats.changed())
        try:
            await self._seats.until(lambda: task.done() or not self._seats.living)
            if not task.done():
                raise _EmptyError
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
