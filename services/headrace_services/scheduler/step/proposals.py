"""Proposals of samplers that a process of the pool computes, as they enter a study.

Such a proposal is never computed in the step: the step says how many are wanted, `suggesting` has them computed
and submits each one as an arrival, and here it is taken if it is the next one. The study's count of sampled
configurations is the sequence number: of two replicas that computed the same proposal the first one wins, and a
proposal that comes twice, or late, changes nothing.
"""

from headrace_services.scheduler import events
from headrace_services.scheduler.arrivals import Accepted, Outcome, Proposed
from headrace_services.scheduler.step import placing
from headrace_services.scheduler.step.state import StepState


def take(state: StepState, arrival: Proposed) -> Outcome:
    """Add the trial of a proposal, if it is the one that comes next."""
    if not state.active or arrival.index != state.study.sampled or not placing.next_is_pooled(state):
        return Accepted()
    if arrival.failure is not None:
        state.emit(events.proposal_failed(state.study.next_number, arrival.failure))
    state.count_proposal()
    placing.create(state, arrival.params, proposal=arrival.proposal)
    state.wants_placement = True
    return Accepted()
