"""A study in process in the form in which the SDK shows studies: the same values, through the same messages.

What the database counts and sorts for a server (`store.studies`) is computed here in plain Python.
"""

from collections import Counter
from dataclasses import replace

from msgspec.structs import replace as with_

from headrace.client import convert as to_values
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.client.outcome import Outcome
from headrace.spec.objective import is_feasible, objective_vector
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.records import Trial, TrialView
from headrace_services.scheduler.in_process.history import Kept
from headrace_services.scheduler.rpc import convert as to_messages
from headrace_services.scheduler.samplers.front import front
from headrace_services.scheduler.simulator.rows import StudyRows
from headrace_services.scheduler.store.studies import FAILURES_AT_MOST, Failure, Figures, Occupancy


def trial_info(rows: StudyRows, kept: Kept, number: int) -> TrialInfo:
    """One trial in the SDK's form."""
    view = TrialView(
        trial=rows.trials[number],
        worker=None,
        slots=(),
        milli=0,
        rungs=tuple(kept.rungs.get(number, ())),
    )
    message = to_messages.trial(rows.study.name, view, rows.study.spec)
    return to_values.trial(message, order=rows.study.spec.space)


def shown(rows: StudyRows, kept: Kept) -> tuple[StudyInfo, list[TrialInfo], list[Report]]:
    """The study, its started trials by number, and its reports. Configurations that the core made ahead of need,
    and that had not started when the study was ended, do not count as trials."""
    trials = [trial_info(rows, kept, trial.number) for trial in _shown(rows)]
    record = with_(rows.study, end_time=kept.ended)
    study = to_values.study(to_messages.study(record, _figures(rows, kept)))
    study = replace(
        study,
        baseline=next((trial for trial in trials if trial.baseline), None),
        front=_front(study, trials),
    )
    return replace(study, leader=_leader(study, trials)), trials, kept.reports


def _shown(rows: StudyRows) -> list[Trial]:
    found = (rows.trials[number] for number in sorted(rows.trials))
    return [trial for trial in found if trial.attempt or trial.reason is not Reason.CANCELLED]


def _figures(rows: StudyRows, kept: Kept) -> Figures:
    trials = _shown(rows)
    entries = [view.entry for views in kept.rungs.values() for view in views]
    recorded = Counter(entry.milestone for entry in entries)
    promoted = Counter(entry.milestone for entry in entries if entry.promoted)
    failed = [trial for trial in trials if trial.reason is Reason.FAILED]
    return Figures(
        states=dict(Counter(trial.state for trial in trials)),
        reasons=dict(Counter(trial.reason for trial in trials if trial.reason is not None)),
        running=dict(Counter(trial.milestone for trial in trials if trial.leased and trial.milestone)),
        occupancy={
            milestone: Occupancy(recorded=count, promoted=promoted[milestone])
            for milestone, count in recorded.items()
        },
        steps_spent=sum(trial.steps_spent for trial in trials),
        failures=tuple(
            Failure(number=trial.number, detail=trial.detail, worker=None)
            for trial in failed[:FAILURES_AT_MOST]
        ),
    )


def _leader(study: StudyInfo, trials: list[TrialInfo]) -> TrialInfo | None:
    """The best trial by the first objective. A score is a value that met the constraints."""
    candidates = [trial for trial in trials if not trial.baseline and trial.score is not None]
    alone = Outcome(replace(study, front=(), spec=study.spec.model_copy(update={"further_objectives": ()})))
    return next(iter(alone.best_first(candidates)), None)


def _front(study: StudyInfo, trials: list[TrialInfo]) -> tuple[TrialInfo, ...]:
    """With several objectives, the trials that no other one dominates; failed ones only if no others have values."""
    spec = study.spec
    if not spec.further_objectives:
        return ()
    measured = [
        (trial, vector)
        for trial in trials
        if not trial.baseline
        and trial.step
        and trial.flaw != "infeasible"
        and (vector := objective_vector(spec.objectives, trial.counted_metrics)) is not None
        and is_feasible(spec.constraints, trial.counted_metrics)
    ]
    found = [one for one in measured if one[0].flaw != "failed"] or measured
    places = front([vector for _, vector in found], [objective.sign for objective in spec.objectives])
    return tuple(found[place][0] for place in places)
