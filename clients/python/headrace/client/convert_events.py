"""Events and decisions: protos to the SDK's values, as in `convert`."""

from collections.abc import Iterable

from headrace.client import events as ev
from headrace.client.convert import REASONS, TRIAL_STATES, checkpoint, exploit, params, rung_result, time_of
from headrace.client.model import TrialState
from headrace.client.names import trial_ref, worker_id
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
    """Why a decision was taken."""
    return ev.Explanation(
        rule=proto.rule,
        bracket=proto.bracket,
        rung=proto.rung,
        milestone=proto.milestone,
        value=proto.value if proto.HasField("value") else None,
        rank=proto.rank,
        results=proto.results,
        kept=proto.kept,
        cutoff_value=proto.cutoff_value if proto.HasField("cutoff_value") else None,
        sentence=proto.sentence,
        slot_goes_to=trial_ref(proto.slot_goes_to),
        pause_price=_pause_price(proto.pause_price) if proto.HasField("pause_price") else None,
        expected_value=proto.expected_value if proto.HasField("expected_value") else None,
        expected_spread=proto.expected_spread if proto.HasField("expected_spread") else None,
        probability=proto.probability if proto.HasField("probability") else None,
    )


def _pause_price(proto: event_pb2.PausePrice) -> ev.PausePrice:
    return ev.PausePrice(
        checkpoint_bytes=proto.checkpoint_bytes,
        write_s=proto.write_s,
        read_s=proto.read_s,
        price_s=proto.price_s,
        rung_s=proto.rung_s,
        rest_s=proto.rest_s,
        promotion_probability=proto.promotion_probability,
        worth_s=proto.worth_s,
        pays=proto.pays,
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
                attempt=stored.attempt,
                sequence=stored.sequence,
                step=stored.step,
                metrics=dict(sorted(stored.metrics.items())),
                checkpoint=checkpoint(stored.checkpoint) if stored.HasField("checkpoint") else None,
            )
        case "trial_warned":
            return ev.TrialWarned(warning=proto.trial_warned.warning)
        case "metrics_missing":
            lacks = proto.metrics_missing
            return ev.MetricsMissing(missing=tuple(lacks.missing), reported=tuple(lacks.reported))
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
        case "proposals_ended":
            return ev.ProposalsEnded(proposals=proto.proposals_ended.proposals)
        case "proposal_failed":
            failed = proto.proposal_failed
            return ev.ProposalFailed(proposal=failed.proposal, attempts=failed.attempts, error=failed.error)
        case "study_moved":
            moved = proto.study_moved
            return ev.StudyMoved(from_state=moved.from_state, to_state=moved.to_state, detail=moved.detail)
        case _:
            return None


def proposal(proto: event_pb2.Proposal) -> ev.Proposal:
    """What a configuration was proposed from."""
    return ev.Proposal(
        sampler=proto.sampler,
        milestone=proto.milestone or None,
        results=proto.results,
        warm_results=proto.warm_results,
        pending=proto.pending,
        generation=proto.generation if proto.HasField("generation") else None,
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
