"""Which trials have a usable result, and why a study has none.

A usable result is what a study is run for. It comes from a trial, other than the baseline, that counts as one that
did not fail (`core.earlier_ends`) and has a score: a finite value of the objective that counts (`core.scores`), of
a report that met every constraint. With several objectives all of them count, in the trial's last report. A study
without a usable result ends FAILED, and the reason says what to do.
"""

import math
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from headrace.last_words import cause, error_line, likeness
from headrace.spec import Scope, StudySpec
from headrace.spec.objective import objective_vector
from headrace.spec.surrogate import GATE
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.records import Trial
from headrace_services.scheduler.core.scores import has_values


def with_attempts(error: str, attempt: int, attempts: int) -> str:
    """The detail of a trial that failed for good: its last error, and the number of that attempt."""
    if attempt < attempts:
        return f"{error} (attempt {attempt} of {attempts}; not tried again: the same error at the same place)"
    return f"{error} (attempt {attempt} of {attempts})" if attempts > 1 else error


class Result(Struct, frozen=True, kw_only=True):
    """The outcome of a trial."""

    number: int
    baseline: bool
    step: int
    """The later of its last report and the result that counts."""
    score: float | None
    metrics: Mapping[str, float]
    """From the report that counts or, if none does, from its last one."""
    reason: Reason | None
    """Why it ended the last time."""
    counts_as: Reason | None
    """Why it ended with the result that counts."""
    detail: str

    @classmethod
    def of(cls, trial: Trial) -> "Result":
        """The result of a trial as it is now."""
        return cls(
            number=trial.number,
            baseline=trial.baseline,
            step=max(trial.step, trial.counted.step if trial.counted else 0),
            score=trial.score,
            metrics=trial.counted_metrics,
            reason=trial.reason,
            counts_as=trial.counts_as,
            detail=trial.detail,
        )


class Results:
    """The results of a study's trials, as far as the study's end depends on them."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._is_gate = spec.template is not None and spec.template.callable == GATE
        self.usable = False
        """Whether any trial has a usable result."""
        self._failed: Result | None = None
        """The first trial that had values and failed."""
        self._unmet = False
        """Whether a trial reported finite values that miss a constraint."""
        self._seen: set[str] = set()
        """The metrics of all trials' reports."""
        self._odd: Result | None = None
        """The first trial whose last value of the objective is not finite."""
        self._furthest = 0
        """The furthest step of any trial."""
        self._trials = 0
        self._errors: Counter[str] = Counter()
        """How many trials failed with each error."""
        self._infeasible: Counter[str] = Counter()
        """How many trials were infeasible for each reason."""

    def add(self, result: Result) -> None:
        """Add a trial."""
        if result.baseline:
            return
        self._trials += 1
        self._furthest = max(self._furthest, result.step)
        if result.reason is Reason.FAILED:
            self._errors[cause(result.detail)] += 1
        if result.reason is Reason.INFEASIBLE:
            self._infeasible[cause(result.detail)] += 1
        self._seen.update(result.metrics)
        if result.counts_as is Reason.INFEASIBLE:
            return
        if has_values(self._spec, result.score, result.metrics):
            if result.counts_as is Reason.FAILED:
                self._failed = _first(self._failed, result)
            elif not self._is_gate or self._passes(result):
                self.usable = True
            return
        value = result.metrics.get(self._spec.objective.metric)
        if value is not None and not math.isfinite(value):
            self._odd = _first(self._odd, result)
        elif objective_vector(self._spec.objectives, result.metrics) is not None:
            self._unmet = True

    def _passes(self, result: Result) -> bool:
        """Whether a gate has passed: its own trial (number 0) completed the full budget."""
        complete = result.reason is Reason.COMPLETED and result.step >= self._spec.max_steps
        return result.number == 0 and complete

    @property
    def settled(self) -> bool:
        """Whether further trials would not change the explanation."""
        return self.usable and self._is_full

    def how_completed(self) -> str:
        """How a study with a usable result ended."""
        if self._is_full:
            return "all trials have finished"
        failures = f"; {self._failures()}" if self._errors else ""
        first, budget = self._spec.rungs()[0], self._spec.max_steps
        if self._furthest < first:
            steps = f"{'the full budget' if first == budget else 'the first rung'}, at step {first}"
            doubt = (
                f"Unless the script stops early, does it count its steps as the study does, up to {budget}?"
            )
            timeout = self._spec.template.timeout if self._spec.template is not None else None
            if timeout is not None:
                doubt = f"Is trial_timeout_s, {timeout.total_seconds():g} s, long enough?"
            return (
                f"all trials have finished, and none reached {steps}: the furthest reached step {self._furthest}. "
                f"{doubt}{failures}"
            )
        return f"all trials have finished, and none reached the full budget{failures}"

    @property
    def _is_full(self) -> bool:
        """Whether a trial had the full budget."""
        return self._furthest >= self._spec.max_steps

    def why_none(self) -> str:
        """Why there is no usable result, and what to do."""
        metrics = [objective.metric for objective in self._spec.objectives]
        first = metrics[0]
        if self._failed is not None:
            return (
                f"every trial that reported a result failed, trial {self._failed.number} with: "
                f"{error_line(self._failed.detail)}; {self._remedy}"
            )
        if self._infeasible and 2 * self._infeasible.total() > self._trials:
            reason, count = self._infeasible.most_common(1)[0]
            which = (
                f"all {self._trials}"
                if self._infeasible.total() == self._trials
                else str(self._infeasible.total())
            )
            return (
                f"{which} trials were infeasible, {count} with: {reason}; narrow the search space, or say with `when` "
                "which parameters go together"
            )
        if self._is_gate and not self._errors:
            return "the check was ended before it was complete; create the study again to run it"
        if 2 * self._errors.total() > self._trials:
            return f"{self._failures()}; {self._remedy}"
        never = [one.metric for one in self._spec.constraints if one.metric not in self._seen]
        if self._unmet and never:
            listed = ", ".join(f"'{metric}'" for metric in never)
            return (
                f"no trial reported {listed}, which a constraint reads; report it, or correct the constraint"
            )
        if self._unmet and not self._spec.constraints:  # a mean of several reports
            return (
                f"one of the last {self._spec.objective.k} values of '{first}' was not finite in each trial, so their "
                "mean does not count; narrow the space, or average fewer (objective.k)"
            )
        if self._unmet:
            bounds = ", ".join(map(str, self._spec.constraints))
            return f"no trial met the constraints ({bounds}); loosen them, or widen the space"
        if self._odd is not None:
            value = self._odd.metrics[first]
            said = "NaN" if math.isnan(value) else str(value)
            how = "reported" if self._spec.scope is Scope.BEST else "ended with"
            return (
                f"no trial {how} a finite '{first}' (trial {self._odd.number} {how} {said}); training diverges "
                "or the metric is computed wrongly: try a configuration by hand, or narrow the space"
            )
        if len(metrics) > 1:
            listed = ", ".join(f"'{metric}'" for metric in metrics)
            return f"no trial reported all objectives ({listed}) with its last report; report them together"
        return f"no trial reported '{first}'; report it in the trial, or correct objective.metric"

    @property
    def _remedy(self) -> str:
        if self._spec.template is None:
            return "fix the program, and try the trials again"
        return "fix the trial's program, and `headrace retry` lets its trials continue"

    def _failures(self) -> str:
        """How many trials failed, and the most common error. Errors that differ only in numbers count as one."""
        failed = self._errors.total()
        kinds: dict[str, Counter[str]] = {}
        for error, count in self._errors.items():
            kinds.setdefault(likeness(error), Counter())[error] += count
        # Trials come in any order: of equally common errors choose the same one each time.
        commonest = min(kinds.values(), key=lambda kind: (-kind.total(), min(kind)))
        error, alike = min(commonest), commonest.total()
        some = "" if failed == 1 else "all " if alike == failed else f"{alike} of them "
        number = f"{failed} of {self._trials} trial{'s' * (self._trials > 1)}"
        like = " (and the like)" if len(commonest) > 1 else ""
        return f"{number} failed{', ' if some else ' '}{some}with: {error}{like}"


def _first(known: Result | None, other: Result) -> Result:
    """The one with the lower number: trials come in any order, and the reason must be the same each time."""
    return other if known is None or other.number < known.number else known
