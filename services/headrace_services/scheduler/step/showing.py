"""Trials as answers show them, made of what a step knows: such an answer is stored with the step's writes.

Of a trial in a user's own loop the step has all of it but what it went through before, its rungs and its lineage. Those
are asked for with the step's first words where an answer will show them. Whatever is not known in this way is left to
be read as the step leaves it, which takes another wait.
"""

from collections.abc import Collection, Sequence

from headrace.spec import StudySpec
from headrace_services.scheduler.arrivals import ExitedArrived
from headrace_services.scheduler.step.changes import Changes
from headrace_services.scheduler.step.state import StepState
from headrace_services.scheduler.step.submissions import Submission
from headrace_services.scheduler.store import trials
from headrace_services.scheduler.store.pipeline import Pipeline
from headrace_services.scheduler.store.trials import AskedHistories, TrialView


def ask_ahead(
    sent: Pipeline, study_id: int, spec: StudySpec | None, submissions: Sequence[Submission]
) -> AskedHistories | None:
    """Ask for what the trials that end went through, where their answers may be made early."""
    ending = {
        submission.arrival.number
        for submission in submissions
        if submission.early and isinstance(submission.arrival, ExitedArrived)
    }
    copied = spec is None or spec.shares_checkpoints
    return trials.ask_histories(sent, study_id, ending, copied=copied) if ending else None


def known(state: StepState, numbers: Collection[int], asked: AskedHistories | None) -> dict[int, TrialView]:
    """Those of the trials that the step knows as it will leave them."""
    if state.study.spec.template is not None:  # the row of the worker has its name
        return {}
    unread = _added_to(state.changes)
    views = [
        TrialView(trial=trial, worker=None, slots=(), milli=0)
        for number in numbers
        if (trial := state.trials.get(number)) is not None
        and number not in unread
        and (trial.rungs == 0 or (asked is not None and number in asked.numbers))
    ]
    return asked.complete(views) if asked else {view.trial.number: view for view in views}


def _added_to(changes: Changes) -> set[int]:
    """The trials to whose histories this step adds."""
    rungs = {change.entry.number for change in changes.rungs}
    return rungs | {change.number for change in changes.promotions} | {e.number for e, _ in changes.exploits}
