"""The outcome of a study: the order of its trials, and its figures compared to the baseline and to run-all.

The improvement compares the scores of the best trial and of the baseline, which have the same scope. Spent steps
are compared with run-all: every configuration run to the full budget. Both include the baseline.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from headrace.client.model import StudyInfo, StudyState, TerminationReason, TrialInfo
from headrace.client.wording import number
from headrace.spec import Goal, Scope


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a study, as of one moment."""

    study: StudyInfo

    @property
    def maximize(self) -> bool:
        """True if larger values are better."""
        return self.study.spec.objective.goal == Goal.MAXIMIZE

    @property
    def several(self) -> bool:
        """True for several objectives: then there is a Pareto front, and no single best trial."""
        return bool(self.study.spec.further_objectives)

    @property
    def front_left_out(self) -> bool:
        """True if there is a Pareto front that the scheduler could not show."""
        return self.several and not self.study.front and bool(self.study.unshown)

    @property
    def sound(self) -> bool:
        """Whether a trial that did not fail has a result: the best one, or those on the Pareto front. If the
        front is left out, the best trial by the first objective decides.
        """
        found = self.study.front if self.several and not self.front_left_out else (self.study.leader,)
        return any(trial is not None and trial.flaw != "failed" for trial in found)

    @property
    def baseline_value(self) -> float | None:
        """The baseline's last value, at the full budget; None if it did not get there. The value that counts may
        be an earlier result: see its score.
        """
        baseline = self.study.baseline
        at_end = baseline is not None and baseline.step >= self.study.spec.max_steps
        return baseline.value if baseline is not None and at_end else None

    @property
    def improvement(self) -> float | None:
        """How much better the best trial's score is than the baseline's; negative if it is worse. None if the
        best trial failed.
        """
        if self.several or not self.sound:
            return None
        best, baseline = self.study.best, self.study.baseline
        if best is None or baseline is None or best.score is None or baseline.score is None:
            return None
        gain = best.score - baseline.score
        return gain if self.maximize else -gain

    @property
    def saved_percent(self) -> float | None:
        """The share of run-all's steps that was not spent, in percent. None unless the study completed: the
        unspent steps of a study that failed, was stopped or was ended by `until` are not savings.
        """
        if not self.study.steps_run_all or self.study.state is not StudyState.COMPLETED or self.cut_off:
            return None
        return 100.0 * (1 - self.study.steps_spent / self.study.steps_run_all)

    @property
    def cut_off(self) -> bool:
        """Whether the study ended before its trials were done: by `until`, by a user, or because it failed."""
        if self.study.state is StudyState.COMPLETED:
            return self.study.until is not None and self.study.until.ends_study
        return self.study.state.ended

    @property
    def wall_time_s(self) -> float | None:
        """The time from creation to end, without times in which it had ended and was not yet continued."""
        return None if self.study.ended is None else self.open_s(self.study.ended)

    def open_s(self, now: datetime) -> float | None:
        """The same up to a time at which the study is still running."""
        if self.study.created is None:
            return None
        return max(0.0, (now - self.study.created).total_seconds() - self.study.over_s)

    def improvement_text(self) -> str | None:
        """`0.0134 better than the baseline (1.4 %)`, or that there is none; with the steps, if these differ."""
        gain, baseline = self.improvement, self.study.baseline
        if gain is None or baseline is None:
            return None
        relative = f" ({100 * abs(gain) / abs(baseline.score):.1f} %)" if baseline.score else ""
        than = "the baseline's best" if self.study.spec.objective.scope is Scope.BEST else "the baseline"
        where = self._unequal_steps()
        if gain > 0:
            return f"{number(gain, 4)} better than {than}{relative}{where}"
        if gain < 0:
            return f"none: {number(-gain, 4)} worse than {than}{relative}{where}"
        return f"none: equal to {than}{where}"

    def _unequal_steps(self) -> str:
        """The steps of the two scores, if scores are those of the last step and the steps differ."""
        best, baseline = self.study.best, self.study.baseline
        if best is None or baseline is None or self.study.spec.objective.scope is Scope.BEST:
            return ""
        at, its = best.score_step, baseline.score_step
        return "" if at == its or None in (at, its) else f", at step {at}; the baseline is at step {its}"

    def marked(self) -> frozenset[int]:
        """The numbers of the trials that views highlight: those on the Pareto front, or the best one."""
        best = self.study.front if self.several else (self.study.best,)
        return frozenset(trial.number for trial in best if trial is not None)

    def values(self, trial: TrialInfo) -> dict[str, float | None]:
        """The values by which a trial counts, by metric: its score or, with several objectives, those of the
        report that counts, which belong together.
        """
        if self.several:
            return {one.metric: trial.objective_values.get(one.metric) for one in self.study.spec.objectives}
        return {self.study.spec.objective.metric: trial.score}

    def counted(self, trial: TrialInfo) -> dict[str, float | None]:
        """These, and the metrics that the constraints read."""
        counted = self.values(trial)
        limits = [one.metric for one in self.study.spec.constraints if one.metric not in counted]
        return counted | {metric: trial.counted_metrics.get(metric) for metric in limits}

    @staticmethod
    def value_at(trial: TrialInfo, step: int) -> float | None:
        """The objective at a step, as far as the trial's own data contain it: at its rungs and at its last
        report.
        """
        known = {result.step: result.value for result in trial.rungs}
        return trial.value if step == trial.step else known.get(step)

    def best_first(self, trials: Iterable[TrialInfo]) -> list[TrialInfo]:
        """The trials ordered by the value that counts, then those that failed or diverged, then those without a
        finite value.

        With `scope: full_budget`, completed trials come before others. Ties go to a completed trial, then to the
        one that trained further, as in the scheduler. With several objectives, those on the Pareto front come
        first, by the first objective.
        """
        places = {trial.number: place for place, trial in enumerate(self.study.front)}

        full_first = self.study.spec.objective.full_budget_first and not self.several

        def key(trial: TrialInfo) -> tuple[int, bool, bool, float, bool, int, int]:
            place = places.get(trial.number, len(places))
            value = self.values(trial)[self.study.spec.objective.metric]
            if value is None or not math.isfinite(value):
                return (place, True, True, math.inf, False, 0, trial.number)
            completed = trial.counts_as is TerminationReason.COMPLETED
            signed = -value if self.maximize else value
            late = full_first and not completed
            return (place, not trial.sound, late, signed, not completed, -trial.step, trial.number)

        return sorted(trials, key=key)


def fallen(before: StudyInfo, now: StudyInfo) -> str:
    """Why the best value got worse between two moments; empty if it did not, and with several objectives."""
    if now.spec.further_objectives:
        return ""
    old, new = before.best, now.best
    if old is None or new is None or old.number == new.number:
        return ""
    was, best = old.score, new.score
    if was is None or best is None or not (best < was if Outcome(now).maximize else best > was):
        return ""
    failed = old.number in {failure.trial for failure in now.failures}
    objective = now.spec.objective
    if failed:
        why = "failed, so it counts no more"
    elif objective.full_budget_first and new.counts_as is TerminationReason.COMPLETED:
        why = f"has not come to its end, and trial {new.number} has"
    elif objective.scope is not Scope.BEST:
        why = "has a worse value since, or none that counts"
    else:
        why = "failed, or its last value is not finite: it does not count now"
    return f"trial {old.number}, the best before with {number(was)}, {why}"
