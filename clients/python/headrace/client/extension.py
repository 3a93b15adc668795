"""What is said before a study is extended: learning-rate schedules that end before the new full budget.

A trial that continues restores its schedule with the end that it had, so a script that builds a longer one does not
help. The warning says which trials track it, what will happen, and what to write.
"""

from headrace.client.model import EndingSchedule, PastEnd, StudyInfo
from headrace.client.wording import plural
from headrace.spec import OnCodeChange

_PAST_END = {
    PastEnd.RAISES: "it raises when it is stepped further, so the trial fails there and keeps the result that it has",
    PastEnd.RISES: "the learning rate rises again from there on",
    PastEnd.UNKNOWN: "what it does past its end is not known",
}
_EDITS = {
    OnCodeChange.WARN: " Trials that continue are then marked as trials of edited code.",
    OnCodeChange.PAUSE: " The study then pauses once for the edit, and `headrace resume` accepts it.",
    OnCodeChange.REFUSE: " This study refuses that (`on_code_change: refuse`).",
}
_ATTRIBUTES = {"OneCycleLR": "total_steps", "CosineAnnealingLR": "T_max"}


def extension_warnings(study: StudyInfo, steps: int) -> list[str]:
    """What to know before the study gets this full budget; empty where nothing speaks against it. Raises nothing."""
    edits = _EDITS[study.spec.on_code_change]
    return [_warning(one, edits) for one in study.schedules if one.schedule.last_step < steps]


def _warning(one: EndingSchedule, edits: str) -> str:
    schedule = one.schedule
    who = f"Trial {one.first_trial} tracks" if one.trials == 1 else f"{plural(one.trials, 'trial')} track"
    end = _ATTRIBUTES.get(schedule.kind)
    unless = f"if {schedule.name}.last_epoch < {schedule.name}.{end}: {schedule.name}.step()" if end else ""
    if unless and schedule.name.isidentifier():
        remedy = f"step it no further than that, `{unless}`"
    else:
        remedy = "step it no further than that"
    return (
        f"{who} {schedule.kind} as '{schedule.name}', which ends at step {schedule.last_step}: "
        f"{_PAST_END[schedule.past_end]}. A checkpoint brings the schedule back with this end, also where the script "
        f"makes a longer one. Before you extend, change the script to {remedy}.{edits} Or create a study with the "
        "larger budget that warm-starts from this one."
    )
