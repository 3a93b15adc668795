"""Converts protos to the SDK's values. Only this module, `convert_events` and `cluster` know both sides.

An enum number that this version does not know becomes `UNKNOWN`, and an unknown kind of event loses only its
detail, so that an old client can read a newer scheduler. Absent submessages and empty strings that mean "none"
become None here.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from headrace.client import model
from headrace.client.names import study_id, trial_name, trial_ref, worker_id
from headrace.errors import StudyDefectError
from headrace.plain import plain
from headrace.spec import StudySpec, Value, from_proto
from headrace.spec.values import params_from_proto
from headrace.v1 import event_pb2, spec_pb2, study_pb2, trial_pb2

STUDY_STATES = {
    study_pb2.STUDY_STATE_ACTIVE: model.StudyState.ACTIVE,
    study_pb2.STUDY_STATE_PAUSED: model.StudyState.PAUSED,
    study_pb2.STUDY_STATE_COMPLETED: model.StudyState.COMPLETED,
    study_pb2.STUDY_STATE_STOPPED: model.StudyState.STOPPED,
    study_pb2.STUDY_STATE_FAILED: model.StudyState.FAILED,
}
TRIAL_STATES = {
    trial_pb2.TRIAL_STATE_PENDING: model.TrialState.PENDING,
    trial_pb2.TRIAL_STATE_RUNNING: model.TrialState.RUNNING,
    trial_pb2.TRIAL_STATE_PAUSED: model.TrialState.PAUSED,
    trial_pb2.TRIAL_STATE_RESUMED: model.TrialState.RESUMED,
    trial_pb2.TRIAL_STATE_TERMINATED: model.TrialState.TERMINATED,
}
REASONS = {
    trial_pb2.TERMINATION_REASON_COMPLETED: model.TerminationReason.COMPLETED,
    trial_pb2.TERMINATION_REASON_STOPPED_EARLY: model.TerminationReason.STOPPED_EARLY,
    trial_pb2.TERMINATION_REASON_FAILED: model.TerminationReason.FAILED,
    trial_pb2.TERMINATION_REASON_CANCELLED: model.TerminationReason.CANCELLED,
    trial_pb2.TERMINATION_REASON_INFEASIBLE: model.TerminationReason.INFEASIBLE,
}


def unshown(proto: study_pb2.Unshown) -> model.Unshown:
    """An entry that a list leaves out."""
    return model.Unshown(name=proto.name, reason=proto.reason)


def study(proto: study_pb2.Study) -> model.StudyInfo:
    """A study. The parameters of its trials are in the order of its space.

    Raises StudyDefectError for a study that the scheduler cannot show.
    """
    if proto.unshown and not proto.HasField("spec"):
        raise _defect(proto)
    spec = _spec(proto.spec.SerializeToString(deterministic=True))
    status = proto.status
    return model.StudyInfo(
        name=study_id(proto.name),
        spec=spec,
        state=STUDY_STATES.get(proto.state, model.StudyState.UNKNOWN),
        detail=proto.detail,
        counts=model.TrialCounts(**plain(status, model.TrialCounts)),
        leader=trial(status.best, order=spec.space) if status.HasField("best") else None,
        baseline=trial(status.baseline, order=spec.space) if status.HasField("baseline") else None,
        rungs=tuple(model.RungStatus(**plain(r, model.RungStatus)) for r in status.rungs),
        steps_spent=status.steps_spent,
        steps_run_all=status.steps_run_all,
        cursor=status.cursor,
        created=time_of(proto, "create_time", proto.create_time),
        ended=time_of(proto, "end_time", proto.end_time),
        front=tuple(trial(one, order=spec.space) for one in status.front),
        failures=tuple(
            model.TrialFailure(
                trial=one.trial_number, detail=one.detail, worker=worker_id(one.worker) or None
            )
            for one in status.failures
        ),
        waits_for=status.waits_for,
        warm_results=status.warm_results if status.HasField("warm_results") else None,
        bundle_sizes=tuple(
            model.BundleSize(
                **plain(one, model.BundleSize),
                turns=tuple(model.BundleTurn(**plain(turn, model.BundleTurn)) for turn in one.turns),
            )
            for one in status.bundle_sizes
        ),
        uid=proto.uid,
        project=proto.project,
        unshown=proto.unshown,
        scale_choice=_scale_choice(proto.scale_choice) if proto.HasField("scale_choice") else None,
        until=_until(status.until) if status.HasField("until") else None,
        schedules=tuple(
            model.EndingSchedule(
                schedule=schedule(one.schedule), trials=one.trials, first_trial=one.first_trial
            )
            for one in status.schedules
        ),
        code_changed=tuple(status.code_changed),
        started=time_of(status, "start_time", status.start_time),
        over_s=_seconds(status, "time_over", status.time_over) or 0.0,
        tags=tuple(proto.tags),
        note=proto.note,
    )


def _until(proto: study_pb2.UntilProgress) -> model.UntilProgress:
    return model.UntilProgress(
        tried=proto.tried,
        deadline=time_of(proto, "deadline", proto.deadline),
        time_left_s=_seconds(proto, "time_left", proto.time_left),
        ends_study=proto.ends_study,
    )


def importance(proto: study_pb2.Importance) -> model.Importance:
    """How much each parameter matters by one objective."""
    return model.Importance(
        **plain(proto, model.Importance),
        parameters=tuple(
            model.ParameterImportance(**plain(part, model.ParameterImportance)) for part in proto.parameters
        ),
    )


def _scale_choice(proto: study_pb2.ScaleChoice) -> model.ScaleChoice:
    tried = [
        model.ScaleTried(
            scale=one.scale,
            kendall=one.kendall,
            regret=one.regret if one.HasField("regret") else None,
            agrees=one.agrees,
        )
        for one in proto.tried
    ]
    return model.ScaleChoice(
        scale=proto.scale,
        study=proto.study,
        least_kendall=proto.least_kendall,
        most_regret=proto.most_regret,
        tried=tuple(tried),
    )


def _defect(proto: study_pb2.Study) -> StudyDefectError:
    name = study_id(proto.name)
    state = STUDY_STATES.get(proto.state, model.StudyState.UNKNOWN)
    detail = f": {proto.detail}" if proto.detail else ""
    over = state not in (model.StudyState.ACTIVE, model.StudyState.PAUSED)
    return StudyDefectError(
        f"study '{name}' is {state}{detail}; {proto.unshown}",
        remedy=f"`headrace delete {name}` removes it." if over else None,
    )


def trial(proto: trial_pb2.Trial, *, order: Iterable[str] = ()) -> model.TrialInfo:
    """A trial; `order` names the parameters in the order of the space."""
    owner = trial_ref(proto.name)
    has_best, has_score = proto.HasField("best_value"), proto.HasField("score")
    lineage = tuple(exploit(e, order=order) for e in proto.lineage)
    copied_after = (e for e in lineage if has_score and proto.score_step <= e.step)
    copied = next(copied_after, None)
    converted: dict[str, Any] = {
        "study": owner.study if owner else "",
        "state": TRIAL_STATES.get(proto.state, model.TrialState.UNKNOWN),
        "params": copied.previous_params if copied else params(proto.parameters, order=order),
        "best_step": proto.best_step if has_best else None,
        "score_step": proto.score_step if has_score else None,
        "rungs": tuple(rung_result(r) for r in proto.rung_results),
        "reason": REASONS.get(proto.termination_reason),
        "checkpoint": checkpoint(proto.checkpoint) if proto.HasField("checkpoint") else None,
        "best_checkpoint": checkpoint(proto.best_checkpoint) if proto.HasField("best_checkpoint") else None,
        "worker": worker_id(proto.worker) or None,
        "last_worker": worker_id(proto.last_worker) or None,
        "created": time_of(proto, "create_time", proto.create_time),
        "started": time_of(proto, "start_time", proto.start_time),
        "ended": time_of(proto, "end_time", proto.end_time),
        "log_path": proto.log_path or None,
        "lineage": lineage,
        "earlier_ends": (ends := tuple(earlier_end(one) for one in proto.earlier_ends)),
        "counted_end": _at(ends, proto.counted_end) if proto.HasField("counted_end") else None,
        "schedules": tuple(schedule(one) for one in proto.schedules),
        "other_code": tuple(other_code(one) for one in proto.other_code),
    }
    return model.TrialInfo(**plain(proto, model.TrialInfo) | converted)


def other_code(proto: trial_pb2.OtherCode) -> model.OtherCode:
    """Steps that were trained by other code."""
    return model.OtherCode(
        trial=proto.trial_number,
        first_step=proto.first_step,
        last_step=proto.last_step,
        files=tuple(proto.files),
    )


def earlier_end(proto: trial_pb2.EarlierEnd) -> model.EarlierEnd:
    """A trial's result when it had ended."""
    return model.EarlierEnd(
        reason=REASONS.get(proto.reason),
        step=proto.step,
        budget=proto.budget if proto.HasField("budget") else None,
        score=proto.score if proto.HasField("score") else None,
        score_step=proto.score_step,
        metrics=dict(proto.metrics),
        checkpoint=checkpoint(proto.checkpoint) if proto.HasField("checkpoint") else None,
        ended=time_of(proto, "end_time", proto.end_time),
        code_changed=tuple(proto.code_changed),
    )


def _at(ends: tuple[model.EarlierEnd, ...], place: int) -> model.EarlierEnd | None:
    return ends[place] if place < len(ends) else None


def schedule(proto: trial_pb2.Schedule) -> model.Schedule:
    """A learning-rate schedule that ends."""
    return model.Schedule(
        name=proto.name,
        kind=proto.kind,
        last_step=proto.last_step,
        past_end=_PAST_ENDS.get(proto.past_end, model.PastEnd.UNKNOWN),
    )


_PAST_ENDS = {
    trial_pb2.PAST_END_RAISES: model.PastEnd.RAISES,
    trial_pb2.PAST_END_RISES: model.PastEnd.RISES,
}


def exploit(proto: trial_pb2.Exploit, *, order: Iterable[str] = ()) -> model.Exploit:
    """One exploit."""
    donor = trial_ref(proto.donor)
    return model.Exploit(
        rung=proto.rung,
        step=proto.step,
        donor=donor.number if donor else -1,
        donor_value=proto.donor_value if proto.HasField("donor_value") else None,
        params=params(proto.parameters, order=order),
        previous_params=params(proto.previous_parameters, order=order),
    )


def params(proto: spec_pb2.ParameterAssignment, *, order: Iterable[str] = ()) -> Mapping[str, Value]:
    """A configuration, in `order` and then by name (a map on the wire has no order)."""
    return in_order(params_from_proto(proto), order)


def in_order(values: Mapping[str, Value], order: Iterable[str]) -> Mapping[str, Value]:
    """Parameters in `order` and then by name."""
    names = [name for name in order if name in values]
    return {name: values[name] for name in [*names, *sorted(values.keys() - set(names))]}


def rung_result(proto: trial_pb2.RungResult) -> model.RungResult:
    """An entry at a rung."""
    return model.RungResult(
        **plain(proto, model.RungResult),
        time=time_of(proto, "time", proto.time),
        cost=model.RungCost(**plain(proto.cost, model.RungCost)) if proto.HasField("cost") else None,
    )


def checkpoint(proto: trial_pb2.CheckpointRef) -> model.Checkpoint:
    """A reference to a durable checkpoint."""
    return model.Checkpoint(
        **plain(proto, model.Checkpoint),
        write_time_s=_seconds(proto, "write_time", proto.write_time),
    )


def checkpoint_to_proto(found: model.Checkpoint) -> trial_pb2.CheckpointRef:
    """What a store needs to find and verify a checkpoint."""
    return trial_pb2.CheckpointRef(
        uri=found.uri,
        step=found.step,
        size_bytes=found.size_bytes,
        manifest_sha256=found.manifest_sha256,
    )


def report(proto: study_pb2.TrialReport) -> model.Report:
    """A stored report."""
    return model.Report(
        **plain(proto, model.Report),
        trial=proto.trial_number,
        time=time_of(proto, "time", proto.time),
        checkpoint=checkpoint(proto.checkpoint) if proto.HasField("checkpoint") else None,
    )


def preview(proto: study_pb2.PreviewStudyResponse, *, order: Iterable[str] = ()) -> model.Preview:
    """A preview of a spec."""
    names = tuple(order)
    return model.Preview(
        trials=proto.trials,
        rungs=tuple(model.PreviewRung(**plain(r, model.PreviewRung)) for r in proto.rungs),
        steps=proto.steps,
        steps_run_all=proto.steps_run_all,
        slots=proto.slots,
        wall_time_s=_seconds(proto, "wall_time", proto.wall_time),
        slot_time_s=_seconds(proto, "slot_time", proto.slot_time),
        samples=tuple(params(sample, order=names) for sample in proto.samples),
        sizes=tuple(model.PreviewSize(**plain(s, model.PreviewSize)) for s in proto.sizes),
        bundle_groups=proto.bundle_groups,
        companions=tuple(
            model.PreviewCompanion(
                role=one.role,
                trials=one.trials,
                steps=one.steps,
                wall_time_s=_seconds(one, "wall_time", one.wall_time),
                slot_time_s=_seconds(one, "slot_time", one.slot_time),
            )
            for one in proto.companions
        ),
    )


def suggestion(proto: study_pb2.SuggestTrialResponse) -> model.Suggestion:
    """A trial for the caller's own loop."""
    info = trial(proto.trial)
    return model.Suggestion(
        trial=info,
        lease=model.Lease(
            lease_id=proto.lease.lease_id,
            trial=model.TrialRef(info.study, info.number),
            attempt=proto.lease.attempt,
        ),
        next_milestone=proto.next_milestone,
    )


def lease_to_proto(lease: model.Lease) -> event_pb2.LeaseRef:
    """The lease as reports refer to it."""
    return event_pb2.LeaseRef(
        lease_id=lease.lease_id,
        trial=trial_name(lease.trial.study, lease.trial.number),
        attempt=lease.attempt,
    )


@lru_cache(maxsize=64)
def _spec(data: bytes) -> StudySpec:
    # A watched study carries its spec in every update; validating it once is enough.
    return from_proto(spec_pb2.StudySpec.FromString(data), stored=True)


def time_of(owner: Message, field: str, value: Timestamp) -> datetime | None:
    return value.ToDatetime(tzinfo=UTC) if owner.HasField(field) else None


def _seconds(owner: Message, field: str, value: Duration) -> float | None:
    return value.ToTimedelta().total_seconds() if owner.HasField(field) else None
