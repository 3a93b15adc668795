"""A study that starts after another one.

    waits ──┬── the other one has completed: starts, and is a study like any other from then on
            ├── the other one failed, was stopped or deleted: fails, with the other's reason
            └── a pilot was to choose its scale, but could not: fails, with the pilot's reason

The scale that a pilot has chosen arrives with the start, and is in the row from then on. No trial exists before
that.

The column `after` of its row says that it waits. Every second a replica looks for studies whose wait is over, and
submits what it finds as an input (`engine/followers.py`). Two replicas may both do so, and one may die before it
does: the row decides, and the next check finds the same. While a study waits, none of its trials is placed, and
all commands of users work as usual. A pause is independent of the wait: a paused study stops waiting, but still
starts no trial.
"""

from headrace_services.scheduler.core import events
from headrace_services.scheduler.core.inputs import AfterEnded
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.state import CycleState


def launch(state: CycleState, said: AfterEnded) -> None:
    """Start the study, or fail it. A duplicate, or an input about a study that this one does not wait for, changes
    nothing."""
    if state.study.after != said.study or state.study.state.ended:
        return
    if said.why_not:
        state.move_study(StudyState.FAILED, said.why_not)
        return
    state.end_wait(said.scale)
    state.emit(events.study_begins(said.study, "" if said.scale is None else f" with {said.scale}"))
    state.wants_placement = True
