"""A study's place among other studies in one cycle, and what it has left to them."""

from headrace_services.scheduler.core.placement.shares import Claim, Share, claim
from headrace_services.scheduler.core.state import CycleState

PATIENCE_S = 10.0
"""How long slots, or a quota's room, are left to a study that does not use them."""


def own_share(state: CycleState) -> Share:
    """Return the study as others see it, as of now."""
    return Share.of(state.study)


def own_claim(state: CycleState) -> Claim:
    """Return the study's place among others, as of now."""
    return claim(own_share(state), state.cluster.totals, state.study.now_s)


def leave_to(state: CycleState, other: int) -> None:
    """Leave something to another study, and notify it."""
    left_to = state.study.standing.left_to
    if other not in left_to:
        state.stand(left_to={**left_to, other: state.study.now_s})
    state.cluster.kicks.add(other)


def silent(state: CycleState) -> set[int]:
    """Studies that something was left to and that have not checked since: whatever the reason, slots must not stay
    idle."""
    before, others = state.study.standing.left_to, state.cluster.others
    left_to = {
        who: since_s
        for who, since_s in before.items()
        if (other := others.get(who))
        is not None  # else it has ended: the studies that slots were left to are asked for
        and (other.wants is not None or other.held_off)
        and other.looked_s <= since_s
    }
    if left_to != before:
        state.stand(left_to=left_to)
    return {who for who, since_s in left_to.items() if state.study.now_s - since_s > PATIENCE_S}
