"""Warnings before a study is extended: learning-rate schedules that end before the new full budget.

A trial that continues restores its schedule with its original end, so a script that builds a longer schedule
does not help. The warning says which trials track the schedule, what will happen, and what to write.
"""

from collections.abc import Iterable, Sequence

from headrace.client.model import EndingSchedule, PastEnd, Schedule, StudyInfo, TrialInfo
from headrace.client.wording import plural
from headrace.spec import OnCodeChange

_PAST_END = {
    PastEnd.RAISES: "the learning rate is low there, and the schedule raises when it is stepped further, which fails "
    "the trial; its result so far stays",
    PastEnd.RISES: "the learning rate is {low} there, and rises again when it is stepped further",
    PastEnd.UNKNOWN: "what it does past its end is not known",
}
_AT_ZERO = ("PolynomialLR", "LinearLR")
"""Schedules that are warned about if they leave the learning rate at 0, whether or not they are stepped further."""
_EDITS = {
    OnCodeChange.WARN: " Trials that continue are then marked as trials of edited code.",
    OnCodeChange.PAUSE: " The study then pauses once for the edit, and `headrace resume` accepts it.",
    OnCodeChange.REFUSE: " This study refuses that (`on_code_change: refuse`).",
}
_RATE = (
    "set the learning rate that the added steps should train with, before each `optimizer.step()` past that step: "
    "`for group in optimizer.param_groups: group['lr'] = …`"
)
_ATTRIBUTES = {"OneCycleLR": "total_steps"}
_LOW = {"CosineAnnealingLR": "`eta_min`, by default 0,"}


def retry_warnings(trials: Iterable[TrialInfo]) -> list[str]:
    """Warnings before these failed trials are retried: they may have failed where a schedule ends, and would
    fail again. One warning for each kind of schedule. Raises nothing.
    """
    found: dict[Schedule, list[TrialInfo]] = {}
    for trial in trials:
        for schedule in trial.schedules:
            if schedule.past_end is PastEnd.RAISES and trial.step >= schedule.last_step:
                found.setdefault(schedule, []).append(trial)
    return [_again(schedule, failed) for schedule, failed in found.items()]


def _again(schedule: Schedule, failed: Sequence[TrialInfo]) -> str:
    one = len(failed) == 1
    who = f"Trial {failed[0].number}" if one else f"{len(failed)} trials"
    return (
        f"{who} failed where {'its' if one else 'their'} {schedule.kind} '{schedule.name}' ends, at step "
        f"{schedule.last_step}: it raises when it is stepped further. A checkpoint restores the schedule "
        f"with this end, so {'the trial fails' if one else 'the trials fail'} there again unless the script is changed "
        f"to {_remedy(schedule)}."
    )


def schedules_warnings(study: StudyInfo, steps: int) -> list[str]:
    """Warnings of schedules that end before this full budget; empty if there are none. Raises nothing."""
    edits = _EDITS[study.spec.on_code_change]
    return [_warning(one, edits) for one in study.schedules if one.schedule.last_step < steps]


def _warning(one: EndingSchedule, edits: str) -> str:
    schedule = one.schedule
    who = f"Trial {one.first_trial} tracks" if one.trials == 1 else f"{plural(one.trials, 'trial')} track"
    if _inner(schedule) in _AT_ZERO:
        happens = "the learning rate stays 0 from there on, so further steps train nothing"
    else:
        happens = _PAST_END[schedule.past_end].format(low=_LOW.get(_inner(schedule), "at its lowest"))
    change = (
        f"Unless your script sets another learning rate there already, change it before you extend to "
        f"{_remedy(schedule)}."
    )
    return (
        f"{who} {schedule.kind} as '{schedule.name}', which ends at step {schedule.last_step}: {happens}. "
        f"A checkpoint restores the schedule with this end, also where the script makes a longer one. "
        f"{change}{edits} Or create a study with the larger budget that warm-starts from this one."
    )


def _inner(schedule: Schedule) -> str:
    """The class of the schedule that ends: `PolynomialLR` for `SequentialLR of PolynomialLR`."""
    return schedule.kind.rpartition(" of ")[2]


def _remedy(schedule: Schedule) -> str:
    """What the script has to do past the schedule's end: holding the schedule there is not enough, because most
    end at a rate of 0 or close to it.
    """
    if schedule.past_end is PastEnd.RISES or _inner(schedule) in _AT_ZERO:
        return _RATE
    name, end = schedule.name, _ATTRIBUTES.get(schedule.kind)
    guard = f", `if {name}.last_epoch < {name}.{end}: {name}.step()`," if end and name.isidentifier() else ""
    return f"step it no further than that{guard} and to {_RATE}"
