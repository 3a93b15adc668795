"""What the quota of a study's project leaves to its trials, in one cycle (`placement.quotas`).

    a trial could have slots ──┬── the quota has room for it: it is placed like any other
                               └── it has none: the study is `held_off`. It claims no slots, so others take them, and
                                   none are reserved for it. It may still take a seat in a bundle, or an ephemeral
                                   slot.

The rows are authoritative. Placing for a project with a quota locks the project's row until the commit, so two
replicas never give out the same room twice. A replica that finds it locked gets nothing now, and tries again soon.
A quota never makes a trial leave: if one is lowered, running trials continue, and nothing more is given out until
there is room.
"""

from math import inf

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core import precedence
from headrace_services.scheduler.core.placement import request_of
from headrace_services.scheduler.core.placement.quotas import Quota, left
from headrace_services.scheduler.core.placement.shares import BEHIND_ALL, Share, Totals
from headrace_services.scheduler.core.records import Slot, Trial
from headrace_services.scheduler.core.state import CycleState


def keep_off(state: CycleState, trial: Trial) -> bool:
    """Whether the quota has no room for a trial's own slots. It has none for trials behind one that waits for it
    either."""
    quota = state.cluster.quota
    if quota is None:
        return False
    return state.cluster.held_off > 0 or _size(state, trial) > _left_milli(state, quota)


def note(state: CycleState, trial: Trial) -> None:
    """Record that a trial waits for the quota, and found neither a seat nor an ephemeral slot instead."""
    state.cluster.held_off = state.cluster.held_off or _size(state, trial)


def has_grown(state: CycleState) -> bool:
    """Whether a quota that held the study off is larger now, or was removed."""
    before, now = state.study.standing, state.cluster.quota
    return before.held_off > 0 and (now is None or now.slots > before.quota)


def most_slots(state: CycleState, held_milli: int = 0) -> int | float:
    """How many whole slots one grant of the study may have, which may already hold `held_milli`."""
    quota = state.cluster.quota
    return inf if quota is None else (_left_milli(state, quota) + held_milli) // WHOLE


def within(state: CycleState, slots: list[Slot], milli: int) -> list[Slot]:
    """The first of these slots, as many as the quota has room for at `milli` thousandths each."""
    quota = state.cluster.quota
    return slots if quota is None else slots[: _left_milli(state, quota) // milli]


def _left_milli(state: CycleState, quota: Quota) -> int:
    """The thousandths of slots that the study may still have, once the studies that go first are left theirs."""
    found = left(
        quota, state.study.standing.usage, _others(state), precedence.own_claim(state), *_as_of(state)
    )
    for other in found.to_others:
        precedence.leave_to(state, other)
    return found.milli


def is_idle(state: CycleState, milli: int) -> bool:
    """Whether the quota has this much that no study of the project waits for."""
    quota = state.cluster.quota
    if quota is None:
        return True
    found = left(quota, state.study.standing.usage, _others(state), BEHIND_ALL, *_as_of(state))
    return milli <= found.milli


def hand_on(state: CycleState) -> None:
    """After placing, wake the project's studies that the quota has room for, in their order with this one."""
    quota, own = state.cluster.quota, precedence.own_share(state)
    if quota is None:
        return
    found = left(quota, own.usage, [*_others(state), own], BEHIND_ALL, *_as_of(state))
    for other in found.to_others:
        if other != own.study_id:
            precedence.leave_to(state, other)


def _others(state: CycleState) -> list[Share]:
    """The project's studies that the quota holds off, except those that did not use what was left to them."""
    hopeless = precedence.silent(state)
    return [
        other
        for who, other in state.cluster.others.items()
        if other.held_off and other.project == state.study.project and who not in hopeless
    ]


def _size(state: CycleState, trial: Trial) -> int:
    return request_of(state.study.spec, trial).size


def _as_of(state: CycleState) -> tuple[Totals, float]:
    return state.cluster.totals, state.study.now_s
