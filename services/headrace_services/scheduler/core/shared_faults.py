"""Faults of a shared GPU that may be due to any of the trials there.

Nobody is charged for such a fault, and it is no loss: all of them would be retried until they are given up, most of
them for nothing. A trial that was there at SUSPECTED_AFTER of them is a suspect. From then on it has a GPU to itself
(`placement.request_of`), so whatever ends it then is its own.
"""

from headrace_services.scheduler.core import events
from headrace_services.scheduler.core.placement import SUSPECTED_AFTER
from headrace_services.scheduler.core.state import CycleState


def count(state: CycleState, number: int) -> None:
    """A trial was there at one more."""
    faults = state.trials[number].shared_faults + 1
    state.update(number, shared_faults=faults)
    if faults == SUSPECTED_AFTER:
        why = "it shared a GPU twice when that failed, so it may be the cause: it gets a GPU of its own"
        state.emit(events.trial_warned(number, why))
