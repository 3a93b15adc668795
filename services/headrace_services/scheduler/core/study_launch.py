"""A study that begins after another one.

    waits ──┬── the other one has completed: begins, and is a study like any other from then on
            ├── the other one failed, was stopped or deleted: fails, with the other's reason
            └── a pilot was to choose its scale, and could not: fails, with the pilot's reason

What a pilot has chosen comes with the beginning, and stands in the row from then on: no trial exists before it.

The column `after` of its row says that it waits. A replica looks every second for studies whose wait is over, and
submits what it found as an input (`engine/followers.py`). Two replicas may both do so, and one may die before it does:
the row decides, and the next look finds the same. While a study waits nothing of it is placed, and its users may do
with it what they may do with others. A pause and the wait are apart: a paused one begins, and still starts nothing.
"""

from headrace_services.scheduler.core import events
from headrace_services.scheduler.core.inputs import AfterEnded
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.state import CycleState


def launch(state: CycleState, said: AfterEnded) -> None:
    """Begin, or fail. What comes twice, or is about another study than the one that it waits for, changes nothing."""
    if state.study.after != said.study or state.study.state.ended:
        return
    if said.why_not:
        state.move_study(StudyState.FAILED, said.why_not)
        return
    state.end_wait(said.scale)
    state.emit(events.study_begins(said.study, "" if said.scale is None else f" with {said.scale}"))
    state.wants_placement = True
