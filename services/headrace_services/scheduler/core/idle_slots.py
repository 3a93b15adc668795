"""Slots that are idle: free, and needed by no study.

A proposal may be only for an idle slot (`Proposed.if_idle`). It must not take what another trial could have, now
or as soon as its reservation allows. So a slot is idle only if it suits no study that waits, is reserved for no
one, and no trial of the study itself could run but does not.
"""

from collections.abc import Sequence

from headrace_services.scheduler.core import cluster_view, quotas, sharing
from headrace_services.scheduler.core.inputs import Input, Proposed
from headrace_services.scheduler.core.needs import AnyRunnable, Candidates, Deciding, ask
from headrace_services.scheduler.core.placement import Request, fit, request_at, suits
from headrace_services.scheduler.core.records import Slot
from headrace_services.scheduler.core.state import CycleState

SLOTS_AT_ONCE = 64
"""How many free slots a study considers."""


def look_ahead(state: CycleState, inputs: Sequence[Input]) -> Deciding[None]:
    """If a proposal is only for an idle slot, check whether slots for a trial are idle."""
    spec = state.study.spec
    proposed = next((one for one in inputs if isinstance(one, Proposed) and one.if_idle), None)
    if proposed is None or spec.template is None:
        return
    yield from cluster_view.look_around(state, SLOTS_AT_ONCE)
    if (yield from ask(AnyRunnable())):
        return
    if (
        spec.max_parallel
        and (yield from ask(Candidates(now_s=state.study.now_s, limit=0))).live >= spec.max_parallel
    ):
        return
    request = request_at(spec, proposed.params, 0, state.study.standing.avoided)
    if not quotas.is_idle(state, request.size):
        return
    slots = _idle(state, () if proposed.beside is None else (proposed.beside,))
    state.cluster.has_idle = fit(slots, sharing.any_trial(state, request)) is not None


def _idle(state: CycleState, beside: tuple[Request, ...]) -> list[Slot]:
    """The free slots that nothing waits for and that suit none of these requests."""
    cluster = state.cluster
    if cluster.known_to is not None:
        return []  # more studies wait than are known
    wanted = [*beside, *(share.wants for share in cluster.others.values() if share.wants is not None)]
    kept = cluster.reservations(state.study.now_s)
    return [
        slot
        for slot in state.free
        if not slot.owner
        and not any(suits(slot, request) for request in wanted)
        and not any(reservation.covers(slot) for reservation in kept)
    ]
