"""How the proposals of samplers that are made outside the cycle enter a study.

Such a proposal is never computed in a cycle. A cycle asks for a number of them, `suggesting` has them computed and
submits each one as an input, and this module accepts it if it is the next one. The study's count of sampled
configurations is the sequence number. If two replicas computed the same proposal, the first one wins, and a
proposal that arrives twice or late changes nothing. A proposal that is only for an idle slot changes nothing if
there is none.
"""

from headrace_services.scheduler.core import events, placing
from headrace_services.scheduler.core.inputs import Accepted, Outcome, ProposalsOver, Proposed
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.state import CycleState


def receive(state: CycleState, proposed: Proposed) -> Outcome:
    """Add the trial of a proposal, if it is the next one."""
    if not _is_next(state, proposed.index) or (proposed.if_idle and not state.cluster.has_idle):
        return Accepted()
    if proposed.failure is not None:
        state.emit(events.proposal_failed(state.study.next_number, proposed.failure))
    params = state.fold.instead(proposed.index, proposed.params)
    state.count_proposal()
    placing.create(state, params, proposal=proposed.proposal)
    state.wants_placement = True
    return Accepted()


def over(state: CycleState, said: ProposalsOver) -> Outcome:
    """Record that the sampler has no further configuration. A study that never had one fails with that reason."""
    if not _is_next(state, said.index):
        return Accepted()
    if not state.study.next_number:
        state.move_study(StudyState.FAILED, said.why)
    else:
        state.end_proposals()
        state.wants_placement = True
    return Accepted()


def _is_next(state: CycleState, index: int) -> bool:
    return state.active and index == state.study.sampled and placing.next_is_pooled(state)
