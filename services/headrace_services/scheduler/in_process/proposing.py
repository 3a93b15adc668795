"""Proposals of samplers that learn, made in the caller's process when they are needed.

The rules are the service's (`suggesting`): which results a model is given, which trials are pending, how often a
proposal is tried, and what takes its place. Only the source differs: results are kept as they arrive, not read
from a database.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from headrace.spec import StudySpec, check_assignment
from headrace_services.scheduler.core.inputs import Proposed
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.policies import Policy
from headrace_services.scheduler.core.records import Params, Proposal, ProposalFailure, Trial
from headrace_services.scheduler.samplers import make_learner
from headrace_services.scheduler.samplers.history import (
    EVERY_RUNG,
    FIRST_RESULT,
    Result,
    choose_level,
    is_told,
    told_levels,
)
from headrace_services.scheduler.samplers.protocol import ATTEMPTS, Learner
from headrace_services.scheduler.samplers.random import RandomSampler
from headrace_services.scheduler.simulator.rows import StudyRows


class Proposing:
    """The results of a study by level, and the model that has learned those of one level."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._told = told_levels(spec) if choose_level(spec, ()) == EVERY_RUNG else ()
        self._results: defaultdict[int, list[Result]] = defaultdict(list)
        """In the order of their arrival; a level that no trial has reached is not a key."""
        self._counts: Counter[int] = Counter()
        """How many results there are at each rung."""
        self._learner: Learner | None = None
        self._level = FIRST_RESULT
        self._broken = False
        """The last proposal failed at every try, so the next one is tried only once."""

    def observe(self, plan: Plan, policy: Policy) -> None:
        """Add the results of a cycle."""
        for change in plan.changes.rungs:
            trial, metrics = change.entry.number, plan.changes.reports[-1].metrics
            after = next(one.after for one in plan.changes.trials if one.after.number == trial)
            level = change.entry.milestone
            result = Result.of(self._spec, after.params, metrics, after.generation, level=level)
            self._results[level].append(result)
            if is_told(self._told, level, change.entry.step):
                self._results[EVERY_RUNG].append(result)
            self._counts[level] += 1
            if change.entry.rung == 0:
                self._results[FIRST_RESULT].append(result)
        for ended in plan.changes.trials:
            if ended.before.reason is None and ended.after.reason is Reason.COMPLETED:
                self._take_unrecorded(ended.after, policy.ladder(ended.after.bracket))
            elif ended.before.reason is None and ended.after.reason is Reason.INFEASIBLE:
                self._take_infeasible(ended.after)

    def _take_unrecorded(self, trial: Trial, ladder: Sequence[int]) -> None:
        """A completed trial without an entry at a rung counts with its last report: the baseline, and a function
        that returned before the full budget."""
        top = self._spec.rungs()[-1]
        result = Result.of(self._spec, trial.params, trial.metrics, trial.generation, level=top)
        if not trial.rungs:
            self._results[FIRST_RESULT].append(result)
        if trial.rungs < len(ladder):
            self._results[top].append(result)
            self._results[EVERY_RUNG].append(result)

    def _take_infeasible(self, trial: Trial) -> None:
        """An infeasible trial counts as the worst at each level where it has no result."""
        rungs = self._spec.rungs()
        result = Result.of(self._spec, trial.params, {}, trial.generation, level=rungs[-1])
        if not trial.rungs:
            self._results[FIRST_RESULT].append(result)
            self._results[EVERY_RUNG].append(result)
        for level in rungs[trial.rungs :]:
            self._results[level].append(result)

    def next(self, rows: StudyRows) -> Proposed:
        """The next proposal, or a random draw if the sampler failed at every try."""
        study = rows.study
        number = study.sampled - len(self._spec.enqueued)
        error = ""
        attempts = 1 if self._broken else ATTEMPTS
        for attempt in range(attempts):
            try:
                params, proposal = self._attempt(rows, number, attempt)
            except Exception as failure:  # noqa: BLE001  (any defect of a sampler becomes a failed attempt)
                self._learner = None
                error = f"{type(failure).__name__}: {failure}"[:1000]
            else:
                self._broken = False
                return Proposed(index=study.sampled, params=params, proposal=proposal)
        self._broken = True
        return Proposed(
            index=study.sampled,
            params=RandomSampler(self._spec).suggest(number),
            proposal=Proposal(sampler="random"),
            failure=ProposalFailure(number=number, attempts=attempts, error=error),
        )

    def _attempt(self, rows: StudyRows, number: int, attempt: int) -> tuple[Params, Proposal]:
        found = choose_level(self._spec, self._counts.items())
        if self._learner is None or found != self._level:
            self._learner, self._level = make_learner(self._spec), found
        learner = self._learner
        learner.learn(self._results[found][learner.learnt :] if found in self._results else ())
        pending = _pending(rows, found)
        suggestion = learner.suggest(number, pending, attempt=attempt)
        proposal = Proposal(
            sampler="random" if suggestion.is_draw else self._spec.sampler.kind,
            level=max(found, 0),
            results=learner.learnt,
            pending=len(pending),
            generation=suggestion.generation,
        )
        return check_assignment(self._spec, suggestion.params, field="proposal"), proposal


def _pending(rows: StudyRows, level: int) -> list[Params]:
    """The configurations of trials that are on their way to a level, or could start now, by number."""
    numbers = {lease.number for lease in rows.leases.values()}
    numbers |= {trial.number for trial in rows.runnable(len(rows.trials))}
    trials = [rows.trials[number] for number in sorted(numbers)]
    return [
        trial.params
        for trial in trials
        if (trial.rungs == 0 if level in (FIRST_RESULT, EVERY_RUNG) else trial.step < level)
    ]
