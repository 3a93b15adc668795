"""A simulated study whose sampler is `best_of` another one of the simulation.

It is the counterpart of `suggesting/best_of`: the data for the decision are read from rows in memory. A check
costs no time, so there is one after every event.
"""

from headrace.spec import BestOfSampler
from headrace_services.scheduler.core.best_of import Found, Source, next_of_best, next_request, turn
from headrace_services.scheduler.core.inputs import ProposalsOver, Proposed
from headrace_services.scheduler.core.lifecycle import Reason, State
from headrace_services.scheduler.core.records import Trial
from headrace_services.scheduler.core.scores import ranked
from headrace_services.scheduler.simulator.rows import StudyRows


def source_of(rows: StudyRows, studies: list[StudyRows]) -> StudyRows | None:
    """The rows of the study whose best configurations a study takes; None if it takes none."""
    sampler = rows.study.spec.sampler
    named = sampler.study if isinstance(sampler, BestOfSampler) else None
    own = [other for other in studies if other.study.project == rows.study.project]
    return next((other for other in own if other is not rows and other.study.name == named), None)


def next_input(rows: StudyRows, other: StudyRows) -> Proposed | ProposalsOver | None:
    """The next input for the study about the best configurations of the other one; None if there is none."""
    study, sampler = rows.study, rows.study.spec.sampler
    assert isinstance(sampler, BestOfSampler)
    more = not study.state.ended and study.sampled < rows.fold.sampled_limit
    if not more or rows.pending or study.sampled >= study.planned:
        return None
    source = _source(other)
    found = _best_left(rows, other) if turn(study, sampler, source) is not None else None
    return next_of_best(study, sampler, source, found, next_request(other.study, len(other.leases)))


def _source(rows: StudyRows) -> Source:
    own = [trial for trial in rows.trials.values() if not trial.baseline]
    return Source(
        id=rows.study.id,
        state=rows.study.state,
        detail=rows.study.detail,
        planned=rows.fold.sampled_limit,
        ended=sum(trial.state is State.TERMINATED for trial in rows.trials.values()),
        decided=sum(_is_decided(trial) for trial in own),
        has_full=any(one.counts_as is Reason.COMPLETED and one.score is not None for one in own),
    )


def _is_decided(trial: Trial) -> bool:
    rests = trial.state is State.PAUSED and trial.milestone is None
    return rests or trial.state is State.TERMINATED


def _best_left(rows: StudyRows, other: StudyRows) -> Found | None:
    taken = {trial.source for trial in rows.trials.values()}
    for trial in ranked(other.study.spec.objective, other.trials.values()):
        if trial.number not in taken:
            return Found(number=trial.number, params=trial.params)
    return None
