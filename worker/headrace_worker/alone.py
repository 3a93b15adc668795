"""An ordinary trial: one lease, one process.

    wait for the slots → prepare the program → spawn → supervise → the group is gone

A trial whose last attempt on this worker failed waits for a while before it is spawned (`retries`).
"""

import asyncio

from headrace.v1 import worker_pb2
from headrace_worker.attempt import Attempt
from headrace_worker.exits import Finished, Verdict, classify, not_started
from headrace_worker.launch import log_path
from headrace_worker.logs import last_line
from headrace_worker.mps import NotServedError
from headrace_worker.place import Place
from headrace_worker.process import CannotStartError, TrialProcess
from headrace_worker.program import AFTER_TERM_S, Program, grace_s, silence_s
from headrace_worker.retries import trial_key
from headrace_worker.running_code import RunningCode
from headrace_worker.slots import Turn


class Alone:
    """Runs one attempt in its own process."""

    shared = False

    def __init__(self, assign: worker_pb2.Assign, turn: Turn, place: Place) -> None:
        self._assign = assign
        self._turn = turn
        self._place = place
        self._attempt: Attempt | None = None
        self._pace = place.bubbles.pace(turn.indices)
        self._program = Program(
            assign.template,
            tuple(turn.indices),
            place.standbys,
            pace=self._pace,
            excused=self._excused,
            silent=self._silent,
            succeeded=self._succeeded,
            let_go=lambda process: place.let_go(self.mark, process),
        )
        self.mark = assign.lease.lease_id
        self.code = RunningCode(assign.template.code.digest)

    @property
    def leader(self) -> int:
        """The process of the attempt, while it runs."""
        return self._program.process.pid if self._program.process else 0

    def expect(self, attempt: Attempt) -> None:
        """Accepts the attempt, before it is prepared."""
        self._attempt = attempt

    async def run(self, attempt: Attempt) -> Verdict:
        """Runs the program to its end; see `Host`."""
        await attempt.unless_ended(self._turn.called.wait())
        if pause_s := self._place.retries.wait_s(trial_key(attempt.assign)):
            await attempt.unless_ended(asyncio.sleep(pause_s))
        output = await attempt.open_log(log_path(self._place.log_dir, self._assign))
        prepared = await attempt.prepare(output)
        lease = self._assign.lease
        try:
            shared = await attempt.unless_ended(
                self._place.mps.join(self.mark, lease.trial, self._assign.grant)
            )
            launch = self._place.launch_of(self._assign, prepared, shared)
        except NotServedError as error:
            output.note(str(error))
            return not_started(str(error), by_machine=True)
        except ValueError as error:  # the template names no program
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_FAILED, error=str(error))

        template = self._assign.template
        await attempt.loaded(await attempt.unless_ended(self._place.named_files(template, launch.args)))

        async def started(process: TrialProcess) -> None:
            await self._place.courier.outbox.started(attempt.lease.lease_id, process.pid, process.started)

        try:
            exit_code = await self._program.run(launch, output, started, attempt.when_there_is_room)
        except CannotStartError as error:
            output.note(str(error))
            return not_started(str(error), by_machine=error.by_machine)
        except ValueError as error:
            output.note(str(error))
            return not_started(str(error), by_machine=False)
        attempt.speakers.exits(exit_code)
        if left_behind := self._program.left_behind:
            attempt.left_behind = left_behind
            output.note(f"its process runs no other trial: {left_behind}")
        tail = output.tail()
        verdict = classify(
            exit_code,
            ending=self._place.mps.ending_of(self.mark, attempt.ending),
            finished=attempt.finished,
            last_line=last_line(tail),
            withheld=launch.withheld,
            waited_s=self._program.waited_s,
            signalled=self._program.signalled,
            left_by_trainer=attempt.speakers.trainer_lost,
        )
        said = attempt.finished or Finished()
        words = f"{tail}\n{said.traceback}\n{said.error}"
        return await self._place.judged(verdict, self._turn.indices, words, self.mark)

    def told(self, attempt: Attempt, term_in_s: float, kill_in_s: float) -> None:  # noqa: ARG002 - a host's
        """The attempt must end, and its process with it."""
        self._program.end_in(term_in_s, kill_in_s)

    def finished(self, attempt: Attempt) -> None:  # noqa: ARG002 - a host's
        """The program says that it is about to exit: give it the grace to do so."""
        grace = grace_s(self._assign.template)
        self._program.end_in(grace, grace + AFTER_TERM_S)

    @property
    def working_dir(self) -> str:
        """The folder in which its process runs, if that is not the folder that the template names."""
        return self._program.own_dir

    def attached(self) -> None:
        """The program asked for its configuration."""
        self._program.attached()

    def trains(self) -> None:
        """The program trains."""
        self._program.trains()

    def heard(self) -> None:
        """The program showed a sign of life."""
        self._program.heard()

    def leave(self, attempt: Attempt) -> None:  # noqa: ARG002 - a host's
        """Hands the slots to the next attempt."""
        self._place.mps.leave(self.mark)
        self._turn.leave()

    def _excused(self) -> bool:
        attempt = self._attempt
        return attempt is None or bool(attempt.ending or attempt.speakers.done or attempt.reports.pending)

    def _succeeded(self) -> bool:
        """Whether the program ended as intended: by itself, or because a decision asked it to."""
        attempt = self._attempt
        if attempt is None or (said := attempt.finished) is None:
            return False
        ended_well = attempt.ending is None or (attempt.ending.decided and not attempt.fenced)
        return ended_well and (not said.error or said.infeasible)

    def _silent(self) -> None:
        attempt = self._attempt
        assert attempt is not None
        error = f"reported nothing for {silence_s(self._assign.template, self._pace):g} s"
        if not attempt.has_reported:
            error += " since its start: it hangs, or report_timeout_s is too short for it (imports count)"
        attempt.hangs(error)
