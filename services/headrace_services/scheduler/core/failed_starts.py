"""An attempt did not reach its program: its worker could not start it, or the two never connected.

That says something about the worker and nothing about the trial, which is charged neither a failure nor a loss.
After the second time in a row on one worker the trial is placed on other workers, if there are any, for
`SHUNNED_S`. The worker itself is suspended after the third time in a row, whichever trials were affected
(`store.failed_starts`). If it is the only worker, its trials wait until it is tried again, after longer and longer
delays, and none of them fails for it.
"""

from headrace_services.scheduler.core import events
from headrace_services.scheduler.core.records import Slot, Study
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import Unreached

TIMES = 2
"""After this many failed starts in a row on one worker a trial is placed on other workers."""
SHUNNED_S = 300.0
"""For how long. This much time without a failed start also ends the row."""


def note(state: CycleState, number: int, slot: Slot, why: str) -> None:
    """Count an attempt that did not reach its program on the worker of a slot."""
    now_s, known = state.study.now_s, state.study.standing.unreached
    rest = {other: one for other, one in known.items() if now_s < one.until_s}
    before = rest.get(number)
    times = before.times + 1 if before is not None and before.incarnation == slot.incarnation else 1
    shunned = times >= TIMES and bool(state.able - {slot.worker_name})
    if shunned and not (before is not None and before.shunned):
        state.emit(events.trial_goes_elsewhere(number, slot.worker_name, times, why))
    rest[number] = Unreached(
        worker=slot.worker_name,
        incarnation=slot.incarnation,
        times=times,
        shunned=shunned,
        until_s=now_s + SHUNNED_S,
    )
    state.stand(unreached=rest)


def over(state: CycleState, number: int) -> None:
    """The trial's program was reached."""
    known = state.study.standing.unreached
    if number in known:
        state.stand(unreached={other: one for other, one in known.items() if other != number})


def shunned(study: Study, number: int) -> Unreached | None:
    """The worker on which a trial must not be placed now; None if there is none."""
    one = study.standing.unreached.get(number)
    return one if one is not None and one.shunned and study.now_s < one.until_s else None


def avoided_by(study: Study, number: int) -> tuple[str, ...]:
    """The incarnations of workers on which a trial must not be placed, for now or for good."""
    one = shunned(study, number)
    return (*study.standing.avoided, one.incarnation) if one else tuple(study.standing.avoided)
