"""Trials as answers show them, made of what a step knows: such an answer is stored with the step's writes.

Of a trial in a user's own loop the step has all of it but what it went through before, its rungs and its lineage. Those
are kept from the steps that made them, or, where others did, asked for with the step's first words. Whatever is not
known in this way is left to be read as the step leaves it, which takes another wait.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from headrace_services.scheduler.arrivals import ExitedArrived
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.changes import Changes
from headrace_services.scheduler.step.state import StepState
from headrace_services.scheduler.step.submissions import Submission
from headrace_services.scheduler.store import trials
from headrace_services.scheduler.store.pipeline import Pipeline
from headrace_services.scheduler.store.trials import AskedHistories, RungView, TrialView


def ask_ahead(
    sent: Pipeline, study_id: int, cache: StudyCache | None, submissions: Sequence[Submission]
) -> AskedHistories | None:
    """Ask for what the trials that end went through, where their answers may be made early and it is not known."""
    ending = {
        submission.arrival.number
        for submission in submissions
        if submission.early and isinstance(submission.arrival, ExitedArrived)
    }
    if cache is not None and not cache.spec.shares_checkpoints:
        ending = {number for number in ending if not cache.live.knows_rungs(number)}
    return trials.ask_histories(sent, study_id, ending) if ending else None


def known(state: StepState, numbers: Collection[int], asked: AskedHistories | None) -> dict[int, TrialView]:
    """Those of the trials that the step knows as it will leave them."""
    if state.study.spec.template is not None:  # the row of the worker has its name
        return {}
    unread, live = _added_to(state.changes), state.cache.live
    kept: dict[int, TrialView] = {}
    read: list[TrialView] = []
    for number in numbers:
        trial = state.trials.get(number)
        if trial is None or number in unread:
            continue
        view = TrialView(trial=trial, worker=None, slots=(), milli=0)
        if trial.rungs == 0:
            kept[number] = view
        elif asked is not None and number in asked.numbers:
            read.append(view)
        elif not state.study.spec.shares_checkpoints and live.knows_rungs(number):
            kept[number] = replace(view, rungs=live.rungs[number])
    return kept | (asked.complete(read) if asked else {})


def keep(state: StepState) -> None:
    """Keep what the step has added to the histories of trials, for the next ones."""
    spec, changes = state.study.spec, state.changes
    if spec.template is None and not spec.shares_checkpoints and (changes.rungs or changes.promotions):
        past = {(change.number, change.rung) for change in changes.promotions}
        made = [RungView(entry=change.entry, time=state.study.now) for change in changes.rungs]
        state.cache.live.keep_rungs(made, past)


def _added_to(changes: Changes) -> set[int]:
    """The trials to whose histories this step adds."""
    rungs = {change.entry.number for change in changes.rungs}
    return rungs | {change.number for change in changes.promotions} | {e.number for e, _ in changes.exploits}
