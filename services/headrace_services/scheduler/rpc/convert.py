"""Conversion from records to messages. The only place of the service that knows both; specs have their own in
`headrace.spec`."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from google.protobuf import json_format
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import Struct
from msgspec.structs import fields

from headrace.plain import plain_fields
from headrace.spec import StudySpec, params_to_proto, to_proto
from headrace.spec.objective import is_feasible
from headrace.spec.scalars import INT64_MAX
from headrace.v1 import event_pb2, study_pb2, trial_pb2
from headrace_services.scheduler.analysis.figures import Preview
from headrace_services.scheduler.attempt_messages import schedule_message
from headrace_services.scheduler.core import hours, other_code
from headrace_services.scheduler.core.capacity import Capacity, Profile, trusted
from headrace_services.scheduler.core.code_changes import changed_files
from headrace_services.scheduler.core.lifecycle import Reason, State
from headrace_services.scheduler.core.records import (
    Checkpoint,
    Decision,
    EarlierEnd,
    Exploit,
    Lease,
    OtherCode,
    RungView,
    Study,
    Trial,
    TrialView,
)
from headrace_services.scheduler.core.scales import ScaleChoice
from headrace_services.scheduler.core.scores import score_step
from headrace_services.scheduler.rpc import names
from headrace_services.scheduler.rpc.waiting import study_waits_for
from headrace_services.scheduler.samplers.importance import Importance
from headrace_services.scheduler.store.cluster import HolderView, KeptView, ShareView, SlotView, WorkerView
from headrace_services.scheduler.store.history import StoredEvent, StoredReport
from headrace_services.scheduler.store.quarantine import Brief
from headrace_services.scheduler.store.studies import Figures, Occupancy

DURATION_MAX_S = 315_576_000_000
"""Ten thousand years: the most that a protobuf Duration holds."""
TRIAL_BYTES = 2 * 1024 * 1024
"""How large a trial may be in an answer; the least important parts of a larger one are left out."""
NAMED_TRIAL_BYTES = 256 * 1024
"""The same for the best trial and the baseline of a study."""
FRONT_TRIAL_BYTES = 8 * 1024
"""The same for each trial on a front."""

_EVENT_DETAILS = frozenset(field.name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["detail"].fields)


def study(record: Study, figures: Figures) -> study_pb2.Study:
    """A study with its status."""
    return study_pb2.Study(
        name=names.study_name(record.name),
        spec=to_proto(record.spec),
        state=study_pb2.StudyState.Value(f"STUDY_STATE_{record.state}"),
        detail=record.detail,
        unshown=figures.unshown,
        status=_status(record, figures),
        create_time=_time(record.create_time),
        end_time=_time(record.end_time),
        uid=record.uid,
        project=record.project,
        scale_choice=None if record.scale_choice is None else _scale_choice(record.scale_choice),
        tags=record.tags,
        note=record.note,
    )


def _scale_choice(choice: ScaleChoice) -> study_pb2.ScaleChoice:
    return study_pb2.ScaleChoice(
        scale=choice.scale,
        study=choice.study,
        least_kendall=choice.least_kendall,
        most_regret=choice.most_regret,
        tried=[
            study_pb2.ScaleTried(scale=one.scale, kendall=one.kendall, regret=one.regret, agrees=one.agrees)
            for one in choice.tried
        ],
    )


def bare_study(record: Brief | Study, why: str) -> study_pb2.Study:
    """The part of a study that can be shown if the whole cannot, or is too large."""
    return study_pb2.Study(
        name=names.study_name(record.name),
        project=record.project,
        state=study_pb2.StudyState.Value(f"STUDY_STATE_{record.state}"),
        detail=record.detail,
        status=study_pb2.StudyStatus(cursor=record.cursor),
        unshown=f"its spec and its status cannot be shown: {why}",
    )


def _status(record: Study, figures: Figures) -> study_pb2.StudyStatus:
    status = study_pb2.StudyStatus(
        pending=figures.states.get(State.PENDING, 0),
        running=figures.states.get(State.RUNNING, 0),
        paused=figures.states.get(State.PAUSED, 0),
        resumed=figures.states.get(State.RESUMED, 0),
        terminated=figures.states.get(State.TERMINATED, 0),
        completed=figures.reasons.get(Reason.COMPLETED, 0),
        stopped_early=figures.reasons.get(Reason.STOPPED_EARLY, 0),
        failed=figures.reasons.get(Reason.FAILED, 0),
        cancelled=figures.reasons.get(Reason.CANCELLED, 0),
        infeasible=figures.reasons.get(Reason.INFEASIBLE, 0),
        rungs=_rungs(record, figures),
        steps_spent=saturated(figures.steps_spent),
        steps_run_all=saturated(_trials_to_run(record) * record.spec.max_steps),
        cursor=record.cursor,
        waits_for=study_waits_for(record, figures),
        warm_results=figures.warm_results,
        until=_until(record),
        schedules=[
            study_pb2.EndingSchedule(
                schedule=schedule_message(one.schedule), trials=one.trials, first_trial=one.first_trial
            )
            for one in figures.schedules
        ],
        code_changed=changed_files(record.code_files),
    )
    status.time_over.FromTimedelta(timedelta(seconds=record.standing.over_s))
    if record.standing.started_s is not None:
        status.start_time.FromDatetime(_at(record, record.standing.started_s))
    if figures.best:
        status.best.CopyFrom(trial(record.name, figures.best, record.spec, most_bytes=NAMED_TRIAL_BYTES))
    if figures.baseline:
        baseline = trial(record.name, figures.baseline, record.spec, most_bytes=NAMED_TRIAL_BYTES)
        status.baseline.CopyFrom(baseline)
    status.front.extend(
        trial(record.name, view, record.spec, most_bytes=FRONT_TRIAL_BYTES) for view in figures.front
    )
    status.bundle_sizes.extend(_bundle_size(profile, found) for profile, found in figures.bundle_sizes)
    status.failures.extend(
        study_pb2.TrialFailure(
            trial_number=failure.number,
            detail=failure.detail,
            worker=names.worker_name(failure.worker) if failure.worker else "",
        )
        for failure in figures.failures
    )
    return status


def _until(record: Study) -> study_pb2.UntilProgress | None:
    until, progress = record.spec.until, record.standing.progress
    if until is None:
        return None
    message = study_pb2.UntilProgress(tried=progress.tried, ends_study=record.closing is not None)
    if until.hours is not None:
        ends_s, left_s = hours.ends_s(progress, until.hours), hours.left_s(progress, until.hours)
        if ends_s is not None and not record.state.ended:
            left_s = min(left_s, max(0.0, ends_s - record.now_s))
            message.deadline.FromDatetime(_at(record, ends_s))
        message.time_left.FromTimedelta(timedelta(seconds=left_s))
    return message


def _at(record: Study, when_s: float) -> datetime:
    """A time of the study's clock as a date."""
    shift_s = record.now.timestamp() - record.now_s  # a study in process has its own clock
    return datetime.fromtimestamp(when_s + shift_s, UTC)


def _bundle_size(profile: Profile, found: Capacity) -> study_pb2.BundleSize:
    first = profile.first
    return study_pb2.BundleSize(
        first_step_s=first.time_s if first else 0.0,
        later_step_s=first.later_s if first else 0.0,
        first_step_trials=first.members if first else 0,
        device=profile.device,
        apart="" if profile.key == "[]" else profile.key,
        trials=found.trials,
        reason=found.why,
        member_bytes=found.member_bytes,
        turns=[
            study_pb2.BundleTurn(
                members=members, turn_s=known.time_s, memory_bytes=known.memory_bytes, fresh=fresh
            )
            for fresh, turns in ((False, profile.steady), (True, profile.fresh))
            for members, known in trusted(turns).items()
        ],
    )


def _rungs(record: Study, figures: Figures) -> list[study_pb2.RungStatus]:
    """The levels of bracket 0; a bracket's own rungs are some of these levels."""
    nobody = Occupancy(recorded=0, promoted=0)
    return [
        study_pb2.RungStatus(
            rung=rung,
            milestone=milestone,
            recorded=figures.occupancy.get(milestone, nobody).recorded,
            promoted=figures.occupancy.get(milestone, nobody).promoted,
            running=figures.running.get(milestone, 0),
        )
        for rung, milestone in enumerate(record.spec.rungs())
    ]


def _trials_to_run(record: Study) -> int:
    """How many trials there will be: the sampler's, the baseline, and those that users added since."""
    baseline = record.spec.baseline is not None
    created = record.next_number - (baseline and record.next_number > 0)
    return record.planned + baseline + max(0, created - record.sampled)


def trial(
    study_id: str, view: TrialView, spec: StudySpec, *, waits_for: str = "", most_bytes: int = TRIAL_BYTES
) -> trial_pb2.Trial:
    """A trial of a study with this spec and, if requested, what it waits for."""
    record = view.trial
    message = trial_pb2.Trial(
        name=names.trial_name(study_id, record.number),
        **{part: getattr(record, part) for part in _TRIAL_PARTS},
        state=trial_pb2.TrialState.Value(f"TRIAL_STATE_{record.state}"),
        parameters=params_to_proto(record.params),
        score_step=score_step(spec, record),
        rung_results=[_rung_result(rung) for rung in view.rungs],
        checkpoint=checkpoint(record.checkpoint) if record.checkpoint else None,
        best_checkpoint=checkpoint(record.best_checkpoint) if record.best_checkpoint else None,
        worker=names.worker_name(view.worker) if view.worker else "",
        last_worker=names.worker_name(view.last_worker) if view.last_worker else "",
        slots=view.slots,
        slot_milli=view.milli,
        bundle=view.bundle.id if view.bundle else "",
        bundle_members=view.bundle.members if view.bundle else 0,
        bundle_seats=view.bundle.seats if view.bundle else 0,
        waits_for=waits_for,
        create_time=_time(record.create_time),
        start_time=_time(record.start_time),
        end_time=_time(record.end_time),
        lineage=[_exploit(study_id, exploit) for exploit in view.lineage],
        earlier_ends=[_earlier_end(end) for end in record.earlier_ends],
        schedules=[schedule_message(one) for one in record.schedules],
        other_code=[_other_code(one) for one in record.other_code if one.last_step >= one.first_step],
        result_of_other_code=other_code.marks_result(record),
        tags=view.tags,
        note=view.note,
    )
    counts = record.counts_as is not Reason.INFEASIBLE  # whatever such a trial reported
    if spec.further_objectives and counts:
        values = {one.metric: record.counted_metrics.get(one.metric) for one in spec.objectives}
        message.objective_values.update({name: value for name, value in values.items() if value is not None})
    if spec.constraints and record.step and counts:
        message.feasible = is_feasible(spec.constraints, record.counted_metrics)
    if record.reason:
        message.termination_reason = reason(record.reason)
    if message.ByteSize() > most_bytes:
        _abridge(message, spec, most_bytes)
    return message


def reason(found: Reason | None) -> trial_pb2.TerminationReason.ValueType:
    """Why a trial ended; unspecified if it has not."""
    return trial_pb2.TerminationReason.Value(f"TERMINATION_REASON_{found or 'UNSPECIFIED'}")


def _other_code(one: OtherCode) -> trial_pb2.OtherCode:
    return trial_pb2.OtherCode(
        trial_number=one.trial, first_step=one.first_step, last_step=one.last_step, files=one.files
    )


def _earlier_end(end: EarlierEnd) -> trial_pb2.EarlierEnd:
    message = trial_pb2.EarlierEnd(
        reason=reason(end.reason),
        step=end.step,
        budget=end.budget,
        score=end.score,
        score_step=end.score_step,
        metrics=end.metrics,
        checkpoint=checkpoint(end.checkpoint) if end.checkpoint else None,
        code_changed=end.code_changed,
    )
    if end.end_time_s is not None:
        message.end_time.FromDatetime(datetime.fromtimestamp(end.end_time_s, UTC))
    return message


def _plain_parts(record: type[Struct], message: type[Message]) -> tuple[str, ...]:
    """The fields that a record and a message share by name and that need no conversion: numbers, texts, metrics."""
    of_record = {part.name for part in fields(record)}
    return tuple(part.name for part in plain_fields(message) if part.name in of_record)


_TRIAL_PARTS = _plain_parts(Trial, trial_pb2.Trial)


def _abridge(message: trial_pb2.Trial, spec: StudySpec, most_bytes: int) -> None:
    """Leave out the less important parts of a large trial, and record that in the message."""
    size = message.ByteSize()
    for metrics in (getattr(message, part.name) for part in plain_fields(message) if part.message_type):
        kept = {name: value for name, value in metrics.items() if name in spec.metrics}
        metrics.clear()
        metrics.update(kept)
    left_out = ["the metrics beside objectives and constraints"]
    further: tuple[tuple[Literal["log_tail", "lineage", "parameters"], str], ...] = (
        ("log_tail", "the log"),
        ("lineage", "the lineage"),
        ("parameters", "the parameters"),
    )
    for field, what in further:
        if message.ByteSize() > most_bytes:
            message.ClearField(field)
            left_out.append(what)
    message.unshown = f"left out, because the trial takes {size / 2**20:.1f} MiB: {', '.join(left_out)}"


def saturated(number: int) -> int:
    """A sum, limited to what a message can hold."""
    return min(number, INT64_MAX)


def _exploit(study_id: str, record: Exploit) -> trial_pb2.Exploit:
    return trial_pb2.Exploit(
        rung=record.rung,
        step=record.checkpoint.step,
        donor=names.trial_name(study_id, record.donor),
        checkpoint=checkpoint(record.checkpoint),
        donor_value=record.donor_value,
        parameters=params_to_proto(record.params),
        previous_parameters=params_to_proto(record.previous_params),
    )


def _rung_result(view: RungView) -> trial_pb2.RungResult:
    return trial_pb2.RungResult(
        rung=view.entry.rung,
        milestone=view.entry.milestone,
        step=view.entry.step,
        value=view.entry.value,
        arrival=view.entry.arrival,
        promoted=view.entry.promoted,
        time=_time(view.time),
    )


def checkpoint(record: Checkpoint) -> trial_pb2.CheckpointRef:
    """The location of a checkpoint."""
    return trial_pb2.CheckpointRef(
        uri=record.uri,
        step=record.step,
        size_bytes=record.size_bytes,
        manifest_sha256=record.manifest_sha256,
        write_time=_duration(record.write_time_s),
    )


def event(stored: StoredEvent) -> event_pb2.Event:
    """An event. If its kind is unknown here, or its detail is not valid, only its sentence is kept."""
    message = event_pb2.Event(
        cursor=stored.cursor,
        time=_time(stored.time),
        trial_number=stored.event.number,
        message=stored.event.message,
    )
    if stored.event.kind in _EVENT_DETAILS:
        detail: dict[str, Any] = {stored.event.kind: stored.event.detail}
        whole = event_pb2.Event()
        whole.CopyFrom(message)
        with suppress(json_format.ParseError):
            return json_format.ParseDict(detail, whole, ignore_unknown_fields=True)
    return message


def report(stored: StoredReport) -> study_pb2.TrialReport:
    """A stored report."""
    return study_pb2.TrialReport(
        trial_number=stored.number,
        attempt=stored.attempt,
        sequence=stored.sequence,
        step=stored.step,
        metrics=stored.metrics,
        time=_time(stored.time),
        checkpoint=checkpoint(stored.checkpoint) if stored.checkpoint else None,
    )


def decision(record: Decision) -> event_pb2.Decision:
    """The answer to a report."""
    return event_pb2.Decision(
        action=event_pb2.DecisionAction.Value(f"DECISION_ACTION_{record.action}"),
        next_milestone=record.next_milestone,
        reason=record.reason,
    )


def lease(study_id: str, record: Lease) -> event_pb2.LeaseRef:
    """What a caller names in its reports."""
    return event_pb2.LeaseRef(
        lease_id=record.id, trial=names.trial_name(study_id, record.number), attempt=record.attempt
    )


def worker(view: WorkerView) -> study_pb2.WorkerStatus:
    """A worker."""
    return study_pb2.WorkerStatus(
        name=names.worker_name(view.name),
        connected=view.connected,
        slots=[_slot(slot) for slot in view.slots],
        labels=view.labels,
        last_seen=_time(view.last_seen),
        version=view.version,
        trouble=view.trouble,
        rejected=view.rejected,
        reused=view.reused,
        mps=view.mps,
        avoided_by=view.avoided_by,
        cpus=view.cpus,
        certificate_end=_time(view.certificate_until),
        reservation=_kept(view.kept) if view.kept else None,
        draining=view.draining,
        drain_time=_time(view.drain_time),
        cordoned=view.cordoned,
        suspended=view.suspended,
        next_try_time=_time(view.next_try),
        cordons=[
            study_pb2.DeviceCordon(
                device=cordon.index,
                uuid=cordon.uuid,
                reason=cordon.reason,
                quarantined=cordon.quarantined,
                time=_time(cordon.time),
            )
            for cordon in view.cordons
        ],
    )


def _slot(view: SlotView) -> study_pb2.SlotStatus:
    holders = [
        study_pb2.SlotHolder(
            trial=_named_trial(holder),
            milli=holder.milli,
            memory_bytes=holder.memory_bytes,
            leaving=holder.leaving,
            bundle=holder.bundle,
            bundle_seats=holder.bundle_seats,
        )
        for holder in view.holders
    ]
    return study_pb2.SlotStatus(
        index=view.index,
        device=view.model,
        memory_bytes=view.memory_bytes,
        trial=holders[0].trial if holders else "",
        holders=holders,
        defect=view.defect,
        uuid=view.uuid,
        loads=[
            study_pb2.SlotLoad(
                minute=_time(load.minute),
                utilization=load.utilization,
                memory_used_bytes=load.memory_used_bytes,
            )
            for load in view.loads
        ],
    )


def _named_trial(view: HolderView | KeptView) -> str:
    """The name of a trial; empty where it is another project's."""
    return names.trial_name(view.study, view.number) if view.study else ""


def _kept(view: KeptView) -> study_pb2.SlotReservation:
    return study_pb2.SlotReservation(
        trial=_named_trial(view),
        slots=view.slots,
        since=_time(datetime.fromtimestamp(view.since_s, UTC)),
        ready=None if view.ready_s is None else _time(datetime.fromtimestamp(view.ready_s, UTC)),
    )


def share(view: ShareView) -> study_pb2.StudyShare:
    """The part of the cluster that an active study has."""
    return study_pb2.StudyShare(
        study=names.study_name(view.study) if view.study else "",
        weight=view.share.weight,
        priority=view.share.priority,
        gpus=view.usage.gpu_milli / 1000,
        cpu_slots=view.usage.cpu_slots,
        gpu_seconds=view.usage.gpu_s,
        cpu_seconds=view.usage.cpu_s,
        virtual_time_s=view.virtual_time_s,
        waiting=view.share.wants is not None,
    )


def preview(record: Preview) -> study_pb2.PreviewStudyResponse:
    """The expected course of a spec."""
    return study_pb2.PreviewStudyResponse(
        trials=record.trials,
        rungs=[
            study_pb2.PreviewRung(
                bracket=rung.bracket,
                rung=rung.rung,
                milestone=rung.milestone,
                trials=rung.trials,
                steps=saturated(rung.steps),
            )
            for rung in record.rungs
        ],
        steps=saturated(record.steps),
        steps_run_all=saturated(record.steps_run_all),
        slots=record.slots,
        wall_time=None if record.wall_time_s is None else _duration(record.wall_time_s),
        slot_time=None if record.slot_time_s is None else _duration(record.slot_time_s),
        samples=[params_to_proto(params) for params in record.samples],
        sizes=[
            study_pb2.PreviewSize(
                gpus=size.gpus, gpu_milli=size.gpu_milli, cpus=size.cpus, trials=size.trials
            )
            for size in record.sizes
        ],
        bundle_groups=record.bundle_groups,
        companions=[
            study_pb2.PreviewCompanion(
                role=one.role,
                trials=one.trials,
                steps=saturated(one.steps),
                wall_time=None if one.wall_time_s is None else _duration(one.wall_time_s),
                slot_time=None if one.slot_time_s is None else _duration(one.slot_time_s),
            )
            for one in record.companions
        ],
    )


def importances(found: Sequence[Importance]) -> list[study_pb2.Importance]:
    """How much each parameter matters, by objective."""
    return [
        study_pb2.Importance(
            metric=one.metric,
            step=one.level,
            trials=one.trials,
            parameters=[
                study_pb2.ParameterImportance(parameter=part.parameter, share=part.share, trials=part.trials)
                for part in one.shares
            ],
            reason=one.reason,
        )
        for one in found
    ]


def states(values: Sequence[trial_pb2.TrialState.ValueType]) -> list[State | None]:
    """The states of a filter; None for one that does not exist."""
    known = {trial_pb2.TrialState.Value(f"TRIAL_STATE_{state}"): state for state in State}
    return [known.get(value) for value in values]


def _time(value: datetime | None) -> Timestamp | None:
    if value is None:
        return None
    message = Timestamp()
    message.FromDatetime(value)
    return message


def _duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(max(-DURATION_MAX_S, min(seconds, DURATION_MAX_S)) * 1_000_000) * 1000)
    return message
