"""What to notify of: the end of a study, its failure, a new best trial. Pure functions.

A notice's id depends only on what happened: the same trial that becomes the best at the same step has one id.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.client.events import StudyMoved, Update
from headrace.client.model import StudyInfo, StudyState, TrialInfo

_ENDS = frozenset(state.value for state in StudyState if state.ended)
Best = tuple[int, int | None]
"""A trial, and the step of the report that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One notification."""

    id: str
    kind: str
    """`study.completed`, `study.stopped`, `study.failed` or `study.new_best`."""
    time: datetime | None
    data: Mapping[str, Any]


def best_of(study: StudyInfo, before: Best | None = None) -> Best | None:
    """The study's best trial. If it has none that counts, or several objectives, it stays the one `before`."""
    leader = None if study.spec.further_objectives else study.leader
    return (leader.number, leader.score_step) if leader is not None and leader.sound else before


def notices(update: Update, before: Best | None) -> Iterator[Notice]:
    """The notices of an update, if the best trial was `before`.

    Only the last of several best trials of an update is one: those before it are no longer the best.
    """
    study = update.study
    best = best_of(study, before)
    if best is not None and best != before:
        yield Notice(
            id=f"{study.uid}.best.{best[0]}.{best[1]}",
            kind="study.new_best",
            time=update.events[-1].time,
            data=_data(study),
        )
    for event in update.events:
        match event.detail:
            case StudyMoved(to_state=state, detail=detail) if state.lower() in _ENDS:
                yield Notice(
                    id=f"{study.uid}.{event.cursor}",
                    kind=f"study.{state.lower()}",
                    time=event.time,
                    data={**_data(study), "state": state.lower(), "detail": detail},
                )
            case _:
                pass


def _data(study: StudyInfo) -> dict[str, Any]:
    return {
        "study": study.name,
        "study_uid": study.uid,
        "project": study.project,
        "state": study.state.value,
        "trials": study.counts.total,
        "failed": study.counts.failed,
        "best": None if study.leader is None or best_of(study) is None else _best(study, study.leader),
    }


def _best(study: StudyInfo, trial: TrialInfo) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "metric": study.spec.objective.metric,
        "score": trial.score,
        "step": trial.score_step,
        "params": dict(trial.params),
    }
