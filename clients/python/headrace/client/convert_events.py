"""Events and decisions: protos to the SDK's values, as in `convert`."""

from collections.abc import Iterable

from headrace.client import events as ev
from headrace.client.convert import REASONS, TRIAL_STATES, checkpoint, exploit, params, rung_result, time_of
from headrace.client.model import TrialState
from headrace.client.names import study_id, trial_ref, worker_id
from headrace.plain import plain
from headrace.v1 import event_pb2

ACTIONS = {
    event_pb2.DECISION_ACTION_CONTINUE: ev.Action.CONTINUE,
    event_pb2.DECISION_ACTION_PAUSE: ev.Action.PAUSE,
    event_pb2.DECISION_ACTION_STOP: ev.Action.STOP,
}


def decision(proto: event_pb2.Decision) -> ev.Decision:
    """The answer to a report."""
    return ev.Decision(
        action=ACTIONS.get(proto.action, ev.Action.UNKNOWN),
        next_milestone=proto.next_milestone,
        reason=proto.reason,
    )


def explanation(proto: event_pb2.Explanation) -> ev.Explanation:
    """Why a decision was made."""
    price = ev.PausePrice(**plain(proto.pause_price, ev.PausePrice))
    return ev.Explanation(
        **plain(proto, ev.Explanation)
        | {
            "slot_goes_to": trial_ref(proto.slot_goes_to),
            "pause_price": price if proto.HasField("pause_price") else None,
        }
    )


def event(proto: event_pb2.Event, *, order: Iterable[str] = ()) -> ev.Event:
    """One entry of the log."""
    return ev.Event(
        cursor=proto.cursor,
        time=time_of(proto, "time", proto.time),
        trial=proto.trial_number if proto.HasField("trial_number") else None,
        message=proto.message,
        detail=_detail(proto, order),
    )


_PLAIN: dict[str, type[ev.EventDetail]] = {
    "trial_warned": ev.TrialWarned,
    "code_changed": ev.CodeChanged,
    "metrics_missing": ev.MetricsMissing,
    "proposals_ended": ev.ProposalsEnded,
    "proposal_failed": ev.ProposalFailed,
    "study_moved": ev.StudyMoved,
    "study_extended": ev.StudyExtended,
}
"""Events with plain fields that have the same names as in the message."""


def _detail(proto: event_pb2.Event, order: Iterable[str]) -> ev.EventDetail | None:
    match proto.WhichOneof("detail"):
        case "trial_created":
            created = proto.trial_created
            return ev.TrialCreated(
                params=params(created.parameters, order=order),
                bracket=created.bracket,
                baseline=created.baseline,
                proposal=proposal(created.proposal) if created.HasField("proposal") else None,
            )
        case "trial_moved":
            return _moved(proto.trial_moved)
        case "report_recorded":
            stored = proto.report_recorded
            return ev.ReportRecorded(
                **plain(stored, ev.ReportRecorded),
                checkpoint=checkpoint(stored.checkpoint) if stored.HasField("checkpoint") else None,
            )
        case "rung_recorded":
            rung = proto.rung_recorded
            return ev.RungRecorded(bracket=rung.bracket, result=rung_result(rung.result))
        case "decision_made":
            made = proto.decision_made
            return ev.DecisionMade(
                action=ACTIONS.get(made.action, ev.Action.UNKNOWN), explanation=explanation(made.explanation)
            )
        case "trial_exploited":
            return ev.TrialExploited(exploit=exploit(proto.trial_exploited.exploit, order=order))
        case "trial_placed":
            placed = proto.trial_placed
            return ev.TrialPlaced(**plain(placed, ev.TrialPlaced) | {"worker": worker_id(placed.worker)})
        case "slots_reserved":
            kept = proto.slots_reserved
            return ev.SlotsReserved(**plain(kept, ev.SlotsReserved) | {"worker": worker_id(kept.worker)})
        case "trial_preempted":
            left = proto.trial_preempted
            return ev.TrialPreempted(in_favour_of=study_id(left.in_favour_of), reason=left.reason)
        case str(kind) if kind in _PLAIN:
            return _PLAIN[kind](**plain(getattr(proto, kind), _PLAIN[kind]))
        case _:
            return None


def proposal(proto: event_pb2.Proposal) -> ev.Proposal:
    """The basis of a proposed configuration."""
    return ev.Proposal(
        sampler=proto.sampler,
        milestone=proto.milestone or None,
        results=proto.results,
        warm_results=proto.warm_results,
        pending=proto.pending,
        generation=proto.generation if proto.HasField("generation") else None,
        source=proto.source if proto.HasField("source") else None,
        early=proto.early,
    )


def _moved(proto: event_pb2.TrialMoved) -> ev.TrialMoved:
    return ev.TrialMoved(
        from_state=TRIAL_STATES.get(proto.from_state, TrialState.UNKNOWN),
        to_state=TRIAL_STATES.get(proto.to_state, TrialState.UNKNOWN),
        action=proto.action,
        attempt=proto.attempt,
        worker=worker_id(proto.worker) or None,
        slots=tuple(proto.slots),
        reason=REASONS.get(proto.termination_reason),
        detail=proto.detail,
    )
