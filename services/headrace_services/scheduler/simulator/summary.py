"""The results of a simulation: cost, time, winner, regret.

The winner is the trial that the service would name, by the objective's scope. Regret is how far its value, without
the noise of the report, falls short of the best value of any of the study's trials at the full budget (0 if it
does not): run-all has a regret of 0 unless noise misled it.

Slots of a large job, in whose bubbles trials ran, are counted separately: they are not part of any slot time, idle
time or cost.

"To target" is what it took until some report was within a share of that best value: virtual time, and
slot-seconds.
"""

import math
from dataclasses import dataclass
from statistics import fmean as mean
from typing import NamedTuple

from headrace.spec import Goal, Scope
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

TARGET_SHARE = 0.01
TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A report that was better than all earlier ones."""

    at_s: float
    slot_s: float
    """Slot-seconds that all trials had spent by then."""
    trial: int
    value: float
    """The reported value."""
    truth: float | None
    """The same value without noise."""


class _Score(NamedTuple):
    """The value with which a trial counts."""

    trial: int
    at_s: float
    step: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One study, simulated once. Times are in seconds of virtual time."""

    trials: int
    slots: int
    steps: int
    """Steps of training, without those that were lost to failures."""
    slot_s: float
    """Slot-seconds for which trials held ordinary slots; those of a bundle hold theirs together."""
    bubble_s: float
    """Slot-seconds for which they held slots in bubbles."""
    wall_s: float
    completed: int
    stopped: int
    failed: int
    pauses: int
    resumes: int
    interruptions: int
    idle: float
    """The share of slot-seconds in which nothing ran, from start to end."""
    idle_pending: float
    """The share in which nothing ran while a trial waited for a slot."""
    winner: int | None
    winner_value: float | None
    best: int | None
    """The trial with the best value at the full budget."""
    best_value: float | None
    survived: bool
    """Whether that trial was trained to the end."""
    top: float | None
    """The share of the `TOP` trials, best at the full budget, that are among the study's own best."""
    regret: float | None
    to_target_s: float | None
    to_target_slot_s: float | None
    decisions: int
    """How many cycles of the scheduler it took."""


def summarise(simulation: Simulation, study: StudySimulation, *, within: float = TARGET_SHARE) -> Summary:
    """The summary of one of a simulation's studies."""
    record, rows = study.record, study.rows
    own = _own(simulation)
    slots = sum(simulation.cluster.machines[one].slots for one in own)
    held_s = sum(held.slot_s for held in record.holdings() if held.worker in own)
    bubble_s = sum(held.slot_s for held in record.holdings() if held.worker not in own)
    offered_s = slots * record.end_s - record.down_s
    endings = [trial.reason for trial in rows.trials.values()]
    best, best_value = true_best(study)
    scores = _ranked_scores(study)
    winner = scores[0] if scores else None
    winner_truth = study.curve(winner.trial).truth(winner.step) if winner else None
    reached_s = None if best_value is None else _reached(study, best_value, within)
    return Summary(
        trials=len(rows.trials),
        slots=slots,
        steps=sum(segment.to_step - segment.from_step for segment in record.segments),
        slot_s=held_s,
        bubble_s=bubble_s,
        wall_s=record.end_s,
        completed=endings.count(Reason.COMPLETED),
        stopped=endings.count(Reason.STOPPED_EARLY),
        failed=endings.count(Reason.FAILED),
        pauses=record.pauses,
        resumes=record.resumes,
        interruptions=record.interruptions,
        idle=max(0.0, 1.0 - held_s / offered_s) if offered_s else 0.0,
        idle_pending=record.idle_pending_s / offered_s if offered_s else 0.0,
        winner=winner.trial if winner else None,
        winner_value=winner.value if winner else None,
        best=best,
        best_value=best_value,
        survived=best is not None and rows.trials[best].reason is Reason.COMPLETED,
        top=_top(study, scores),
        regret=_regret(winner_truth, best_value, study),
        to_target_s=reached_s,
        to_target_slot_s=None if reached_s is None else _spent(study, [reached_s], own)[0],
        decisions=record.events,
    )


def true_best(study: StudySimulation) -> tuple[int | None, float | None]:
    """The trial with the best value at the full budget, the first of equal ones; (None, None) if none has one."""
    ranked = _ranked_finals(study)
    return ranked[0] if ranked else (None, None)


def _ranked_finals(study: StudySimulation) -> list[tuple[int, float]]:
    """The trials with their true values at the full budget, best first."""
    sign = _sign(study)
    finals = ((number, study.curve(number).truth(study.spec.max_steps)) for number in study.rows.trials)
    finite = [(number, value) for number, value in finals if value is not None and math.isfinite(value)]
    return sorted(finite, key=lambda pair: (sign * pair[1], pair[0]))


def _top(study: StudySimulation, own: list[_Score]) -> float | None:
    """The overlap of the best trials and those with the best scores."""
    finals = [number for number, _ in _ranked_finals(study)][:TOP]
    found = {one.trial for one in own[:TOP]}
    return len(set(finals) & found) / len(finals) if finals else None


def _ranked_scores(study: StudySimulation) -> list[_Score]:
    """The trials' scores (`core.scores`), best first; of equal ones, the one reported first. They are computed
    from all reports, as the rows of a simulation have only some of them."""
    objective, rows = study.spec.objective, study.rows.trials
    reports: dict[int, list[_Score]] = {}
    for at_s, trial, step, value in _reports(study):
        reports.setdefault(trial, []).append(_Score(trial, at_s, step, value))

    def place(score: _Score) -> tuple[bool, float, float, int]:
        late = objective.full_budget_first and rows[score.trial].counts_as is not Reason.COMPLETED
        return (late, objective.sign * score.value, score.at_s, score.trial)

    if objective.scope is Scope.BEST:
        return sorted((min(told, key=place) for told in reports.values()), key=place)
    last = objective.k or 1
    found = [
        told[-1]._replace(value=mean(one.value for one in told[-last:]))
        for trial, told in reports.items()
        if (ended := rows[trial].value) is None or math.isfinite(ended)
    ]
    return sorted(found, key=place)


def improvements(simulation: Simulation, study: StudySimulation) -> list[Improvement]:
    """The reports that were better than all earlier ones, by time."""
    sign = _sign(study)
    best = math.inf
    found: list[tuple[float, int, int, float]] = []
    for at_s, trial, step, value in _reports(study):
        if sign * value < best:
            best = sign * value
            found.append((at_s, trial, step, value))
    spent = _spent(study, [at_s for at_s, _, _, _ in found], _own(simulation))
    return [
        Improvement(at_s=at_s, slot_s=slot_s, trial=trial, value=value, truth=study.curve(trial).truth(step))
        for (at_s, trial, step, value), slot_s in zip(found, spent, strict=True)
    ]


def _reports(study: StudySimulation) -> list[tuple[float, int, int, float]]:
    """All reports with a finite value, by time: time, trial, step, value."""
    reports: list[tuple[float, int, int, float]] = []
    for segment in study.record.segments:
        curve = study.curve(segment.trial)
        for step, value in curve.points(segment.from_step, segment.to_step - 1):
            at_s = segment.start_s + curve.train_s(segment.from_step, step) / segment.speed
            reports.append((at_s, segment.trial, step, value))
        if segment.value is not None and math.isfinite(segment.value):
            reports.append((segment.trained_s, segment.trial, segment.to_step, segment.value))
    reports.sort(key=lambda report: report[:3])
    return reports


def _own(simulation: Simulation) -> set[int]:
    """The machines that do not belong to a large job."""
    return {one.id for one in simulation.cluster.machines.values() if not one.owner}


def _spent(study: StudySimulation, moments: list[float], own: set[int]) -> list[float]:
    """Slot-seconds spent up to each of the moments, which are sorted."""
    changes: list[tuple[float, float]] = []
    for held in study.record.holdings():
        if held.worker not in own:
            continue
        changes += [(held.start_s, held.width), (held.end_s, -held.width)]
    changes.sort()
    spent: list[float] = []
    busy, total, since, place = 0.0, 0.0, 0.0, 0
    for moment in moments:
        while place < len(changes) and changes[place][0] <= moment:
            at_s, change = changes[place]
            total += busy * (at_s - since)
            busy, since, place = busy + change, at_s, place + 1
        spent.append(total + busy * (moment - since))
    return spent


def _sign(study: StudySimulation) -> float:
    return -1.0 if study.spec.objective.goal is Goal.MAXIMIZE else 1.0


def _reached(study: StudySimulation, best: float, within: float) -> float | None:
    """When a trial first reported with a true value within a share of the best."""
    sign = _sign(study)
    target = sign * best + within * abs(best)
    for at_s, trial, step, _ in _reports(study):
        truth = study.curve(trial).truth(step)
        if truth is not None and sign * truth <= target:
            return at_s
    return None


def _regret(winner: float | None, best: float | None, study: StudySimulation) -> float | None:
    if winner is None or best is None:
        return None
    return max(0.0, _sign(study) * (winner - best))
