"""Converts messages of the worker daemon to the trial library's values, and back."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from headrace.grants import DEFAULT_RANK_PATIENCE_S
from headrace.trial.runtime import (
    TOLD,
    Action,
    Assignment,
    Decision,
    EndsStudy,
    KeepBest,
    MetricBound,
    OwnEnd,
    PastEnd,
    Report,
    Schedule,
    Surrogate,
    TrialRuntimeError,
    TurnCost,
)
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2, trial_pb2, worker_pb2

# Limits on an error's text and on a traceback, which may contain whole tensors; the worker keeps less.
_TOLD_CHARACTERS = 16 << 10
_WARNED_CHARACTERS = 2000

_ACTIONS = {
    event_pb2.DECISION_ACTION_CONTINUE: Action.CONTINUE,
    event_pb2.DECISION_ACTION_PAUSE: Action.PAUSE,
    event_pb2.DECISION_ACTION_STOP: Action.STOP,
}
_PAST_ENDS = {
    PastEnd.UNKNOWN: trial_pb2.PAST_END_UNSPECIFIED,
    PastEnd.RAISES: trial_pb2.PAST_END_RAISES,
    PastEnd.RISES: trial_pb2.PAST_END_RISES,
}


def assignment(answer: runtime_pb2.AttachResponse, *, rank: int = 0, in_gang: bool = False) -> Assignment:
    """Which trial it is and where it continues."""
    assign = answer.assign
    values = assign.parameters.values
    slots = tuple(assign.grant.slots)
    return Assignment(
        trial=assign.lease.trial,
        params={
            name: getattr(values[name], values[name].WhichOneof("kind") or "") for name in sorted(values)
        },
        max_steps=assign.max_steps,
        next_milestone=assign.next_milestone,
        seed=assign.seed,
        metric=assign.metric,
        further_metrics=tuple(assign.further_metrics),
        constraint_metrics=tuple(assign.constraint_metrics),
        rungs=tuple(assign.rungs),
        restore_dir=Path(answer.restore_dir) if answer.restore_dir else None,
        resume_step=assign.resume_step,
        last_step=assign.last_step,
        checkpoint_dir=Path(answer.checkpoint_dir) if answer.checkpoint_dir else None,
        slots=slots,
        slot_milli=assign.grant.milli,
        memory_bytes=assign.grant.memory_bytes,
        rank=rank,
        ranks=max(1, len(slots)) if in_gang else 1,
        rank_patience_s=_patience_s(assign.template),
        id=assign.lease.lease_id.rpartition(".")[0].replace(
            ".", "-"
        ),  # of the study's uid, the number and the attempt
        target=assign.template.callable,
        working_dir=assign.template.working_dir,
        surrogate=_surrogate(assign) if assign.HasField("surrogate") else None,
        plan_dir=Path(answer.plan_dir) if answer.plan_dir else None,
        keep_best=_keep_best(assign.keep_best) if assign.HasField("keep_best") else None,
        ends_study=_ends_study(assign.ends_study) if assign.HasField("ends_study") else None,
        leave_file=Path(answer.leave_file) if answer.leave_file and not in_gang else None,
    )


def restored(lease_id: str, read_time_s: float) -> runtime_pb2.RestoredRequest:
    """The message that the checkpoint is loaded."""
    return runtime_pb2.RestoredRequest(lease_id=lease_id, read_time=_duration(read_time_s))


def report(lease_id: str, told: Report, *, rank: int = 0) -> runtime_pb2.ReportRequest:
    """A report."""
    return runtime_pb2.ReportRequest(
        lease_id=lease_id,
        sequence=told.sequence,
        step=told.step,
        metrics=told.metrics,
        checkpoint_dir=str(told.checkpoint_dir or ""),
        train_time=_duration(told.train_time_s),
        save_time=_duration(told.save_time_s),
        rank=rank,
        warnings=told.warnings,
        turn=_turn_cost(told.turn) if told.turn is not None else None,
        schedules=None if told.schedules is None else _schedules(told.schedules),
        returned=told.returned,
    )


def _schedules(told: Sequence[Schedule]) -> trial_pb2.Schedules:
    return trial_pb2.Schedules(
        schedules=[
            trial_pb2.Schedule(
                name=one.name, kind=one.kind, last_step=one.last_step, past_end=_PAST_ENDS[one.past_end]
            )
            for one in told
        ]
    )


def _turn_cost(cost: TurnCost) -> event_pb2.TurnCost:
    return event_pb2.TurnCost(
        members=cost.members,
        turns=cost.turns,
        time=_duration(cost.time_s),
        memory_bytes=cost.memory_bytes,
        fresh=cost.fresh,
        first_step=_duration(cost.first_step_s) if cost.first_step_s else None,
        later_step=_duration(cost.later_step_s) if cost.first_step_s else None,
    )


def finish(
    lease_id: str, *, error: str, traceback: str, rank: int = 0, exit_code: int = 0, own: OwnEnd = TOLD
) -> runtime_pb2.FinishRequest:
    """How a program ended."""
    return runtime_pb2.FinishRequest(
        lease_id=lease_id,
        error=head_of(error),
        traceback=tail_of(traceback),
        rank=rank,
        exit_code=exit_code,
        checkpoint_dir=str(own.checkpoint_dir or ""),
        step=own.step,
        save_time=_duration(own.save_time_s),
        unsaved=own.unsaved[:_WARNED_CHARACTERS],
        by_itself=own.by_itself,
        unreadable_checkpoint=own.unreadable,
        exiting=own.exiting,
        infeasible=own.infeasible,
    )


def decision(answer: event_pb2.Decision) -> Decision:
    """The decision. Raises `TrialRuntimeError` for an unknown action."""
    action = _ACTIONS.get(answer.action)
    if action is None:
        raise TrialRuntimeError(
            f"the worker answered with the unknown decision {answer.action}; it is newer than this Headrace"
        )
    return Decision(action=action, next_milestone=answer.next_milestone, reason=answer.reason)


def head_of(error: str) -> str:
    """The part of an error's text that is reported."""
    return error[:_TOLD_CHARACTERS]


def tail_of(traceback: str) -> str:
    """The part of a traceback that is reported."""
    return traceback[-_TOLD_CHARACTERS:]


def _surrogate(assign: worker_pb2.Assign) -> Surrogate:
    told = assign.surrogate
    return Surrogate(
        model=told.model,
        width=told.width,
        scale=told.scale,
        optimizer=told.optimizer or "adamw",
        inputs=told.inputs,
        gated=not assign.gate.off,
        widths=tuple(assign.gate.widths),
    )


def _keep_best(told: event_pb2.KeepBest) -> KeepBest:
    return KeepBest(
        maximize=told.goal == spec_pb2.GOAL_MAXIMIZE,
        constraints=_bounds(told.constraints),
        best_value=told.best_value if told.HasField("best_value") else None,
    )


def _ends_study(told: event_pb2.EndsStudy) -> EndsStudy:
    return EndsStudy(
        maximize=told.goal == spec_pb2.GOAL_MAXIMIZE,
        value=told.value,
        constraints=_bounds(told.constraints),
    )


def _bounds(told: Iterable[spec_pb2.Constraint]) -> tuple[MetricBound, ...]:
    return tuple(
        MetricBound(
            metric=one.metric,
            at_most=one.at_most if one.HasField("at_most") else None,
            at_least=one.at_least if one.HasField("at_least") else None,
        )
        for one in told
    )


def _patience_s(template: spec_pb2.TrialTemplate) -> float:
    """How late a rank of a gang may be: as long as the study allows between reports, or else a minute."""
    if not template.HasField("report_timeout"):
        return DEFAULT_RANK_PATIENCE_S
    return template.report_timeout.ToTimedelta().total_seconds()


def _duration(seconds: float) -> Duration:
    return Duration(seconds=int(seconds), nanos=int((seconds % 1.0) * 1e9))
