"""Trial after trial, until the study is over: ask, call the function, tell.

    asked ── the function returned or reported its last step ──► over
       │
       ├── the policy stops it: `t.steps()` ends, or the generator is closed ──► over
       ├── the policy pauses it: the generator waits here, until the study asks for the trial again
       └── the function raised: the trial failed, and is tried again if `retries` allow it

Ctrl-C, the timeout and the callback end the study between two of these, or at a report. Its trials are
cancelled, and their reports stay.
"""

import time
import warnings
from collections.abc import Callable, Generator, Iterable
from inspect import isgenerator
from typing import Any, cast

from headrace.client.model import TrialInfo
from headrace.errors import HeadraceError
from headrace.in_process.engine import NAME, Asked, Engine
from headrace.metrics import metrics_of
from headrace.trial import raised
from headrace.trial.runtime import TOLD, Action, Assignment, Decision, Ended, OwnEnd, Report
from headrace.trial.session import Trial

Callback = Callable[[TrialInfo], object]
"""Called with each trial that is over; returning True ends the study."""


class CannotPauseError(HeadraceError):
    """A trial should be paused, but its function cannot be."""


class Loop:
    """One run of a study."""

    def __init__(
        self,
        engine: Engine,
        function: Callable[[Trial], Any],
        *,
        timeout_s: float | None,
        callback: Callback | None,
    ) -> None:
        self._engine = engine
        self._function = function
        self._callback = callback
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._waiting: dict[int, Generator[Any, None, Any]] = {}
        """The generators of paused trials."""
        self._warned: set[str] = set()
        self._objectives = tuple(one.metric for one in engine.spec.objectives)
        self._error: Exception | None = None
        self._defect: Exception | None = None
        """The exception that the study itself raised at a report: it cannot continue."""

    def run(self) -> Exception | None:
        """Run the study to its end. Returns the last exception that the function raised."""
        try:
            while not self._is_late() and (asked := self._engine.ask()) is not None:
                self._train(asked)
                self._call_back()
        except KeyboardInterrupt:
            self._engine.stop("interrupted by Ctrl-C")
        finally:
            self._close(self._waiting.values())
        self._call_back()
        return self._error

    def _close(self, generators: Iterable[Generator[Any, None, Any]]) -> None:
        """Close all generators. If one raises an exception there, that is only a warning and does not affect the
        results.
        """
        errors = []
        for generator in generators:
            try:
                generator.close()
            except Exception as error:  # noqa: BLE001  (whatever the function raises)
                errors.append(raised.words(error)[0])
        if errors:
            said = f"{len(errors)} generators raised while they were closed, first: {errors[0]}"
            warnings.warn(f"headrace: {said}", stacklevel=2)

    def report(self, asked: Asked, step: int, metrics: dict[str, float], *, held: bool = False) -> Decision:
        """Report a result, and return what to do next."""
        if self._defect is not None:  # the function caught it, and continued
            raise self._defect
        try:
            decision = self._engine.report(asked, step, metrics, held=held)
        except HeadraceError:
            raise  # the report is invalid
        except Exception as error:
            self._defect = error
            raise
        if decision.action is Action.PAUSE and not held:  # an unknown policy from an installed package
            self._defect = CannotPauseError(
                f"the policy paused trial {asked.number} at step {step}, and this function cannot be paused",
                remedy="Write it as a generator that yields the result of each step, or choose another policy.",
            )
            raise self._defect
        if decision.action is Action.CONTINUE and self._is_late():
            asked.over = True
            return Decision(action=Action.STOP, reason=self._lateness())
        return decision

    def _is_late(self) -> bool:
        """Whether the time is up. If so, the study is ended."""
        if self._timeout_s is None or time.monotonic() - self._began < self._timeout_s:
            return False
        self._engine.stop(self._lateness())
        return True

    def _lateness(self) -> str:
        return f"the timeout of {self._timeout_s:g} s is over"

    def _train(self, asked: Asked) -> None:
        generator = self._waiting.pop(asked.number, None)
        try:
            if generator is None:
                trial = _Trial(self._assignment(asked), _Runtime(self, asked), self._warned)
                returned = self._function(trial)
                if isgenerator(returned):
                    self._advance(asked, cast("Generator[Any, None, Any]", returned), step=0)
                else:
                    trial._report_returned(returned, required=True)
            else:
                self._advance(asked, generator, step=asked.step)
        except Ended:
            pass
        except Exception as error:  # noqa: BLE001  (whatever the function raises ends its trial, not the study)
            if self._defect is None and (reason := raised.infeasible(error)) is not None:
                self._engine.infeasible(asked, reason)
                return
            if self._defect is None:
                self._error = error
                self._engine.fail(asked, raised.words(error)[0])
                return
        if self._defect is not None:  # of a policy or our own, even if the function caught it
            if isinstance(self._defect, CannotPauseError):
                self._engine.stop(self._defect.message)
            raise self._defect from None
        if not asked.over:
            self._engine.finish(asked)

    def _advance(self, asked: Asked, generator: Generator[Any, None, Any], *, step: int) -> None:
        """Step after step, until the policy pauses or stops the trial."""
        held = self._engine.spec.pauses
        for result in generator:
            step += 1
            if step <= asked.step:
                continue  # a failed trial starts over, and its earlier reports are known
            decision = self.report(asked, step, metrics_of(result, self._objectives), held=held)
            if decision.action is Action.PAUSE:
                self._waiting[asked.number] = generator
                return
            if decision.action is Action.STOP:
                self._close([generator])
                return

    def _assignment(self, asked: Asked) -> Assignment:
        spec = self._engine.spec
        return Assignment(
            trial=f"studies/{NAME}/trials/{asked.number}",
            params=asked.params,
            max_steps=spec.max_steps,
            next_milestone=asked.milestone,
            seed=asked.seed,
            metric=self._objectives[0],
            further_metrics=self._objectives[1:],
            constraint_metrics=tuple(one.metric for one in spec.constraints),
        )

    def _call_back(self) -> None:
        ended = self._engine.take_ended()
        if self._callback is None:
            return
        for number in ended:
            if self._callback(self._engine.trial(number)) is True:
                self._engine.stop("the callback asked for the end")


class _Trial(Trial):
    """A trial in this process. A warning about one trial is not repeated for the next."""

    def __init__(self, assignment: Assignment, runtime: "_Runtime", warned: set[str]) -> None:
        super().__init__(assignment, runtime)
        self._warned = warned


class _Runtime:
    """The runtime behind a trial: passes its reports to the loop."""

    def __init__(self, loop: Loop, asked: Asked) -> None:
        self._loop = loop
        self._asked = asked

    def attach(self) -> Assignment:
        """Not used: the loop passes the assignment itself."""
        raise NotImplementedError

    def restored(self, *, read_time_s: float) -> None:
        """Does nothing: no trial here starts from a checkpoint."""

    def report(self, report: Report) -> Decision:
        """Passes a report to the loop."""
        return self._loop.report(self._asked, report.step, dict(report.metrics))

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:
        """Does nothing: the loop sees how the function ended."""
