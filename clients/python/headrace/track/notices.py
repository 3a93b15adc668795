"""What to notify of: the end of a study, its failure, a new best trial. Pure functions.

A best trial is new if another trial leads, or if its score improves: not if it only gets worse, or trains on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.client.events import StudyMoved, Update
from headrace.client.model import StudyInfo, StudyState, TrialInfo
from headrace.spec import Goal

_ENDS = frozenset(state.value for state in StudyState if state.ended)
Best = tuple[int, float]
"""A trial, and its score."""


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
    if leader is None or not leader.sound or leader.score is None:
        return before
    return leader.number, leader.score


def notices(update: Update, before: Best | None) -> Iterator[Notice]:
    """The notices of an update, if the best trial was `before`.

    Only the last of several best trials of an update is one: those before it are no longer the best.
    """
    study = update.study
    best = best_of(study, before)
    if best is not None and _is_new(best, before, study.spec.objective.goal):
        yield Notice(
            id=f"{study.uid}.best.{update.events[-1].cursor}",
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


def _is_new(best: Best, before: Best | None, goal: Goal) -> bool:
    if before is None or best[0] != before[0]:
        return True
    return best[1] < before[1] if goal is Goal.MINIMIZE else best[1] > before[1]


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
