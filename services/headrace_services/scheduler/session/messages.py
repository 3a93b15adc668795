"""Conversions between the session's protos and the scheduler's records."""

import hashlib
import re
from datetime import timedelta
from functools import lru_cache
from typing import Any, assert_never

from google.protobuf.duration_pb2 import Duration

from headrace import bounds
from headrace.bounds.calls import ERROR
from headrace.bounds.sessions import LOG_TAIL, TROUBLE, WARNING
from headrace.errors import InvalidFieldError, Violation
from headrace.spec import OnCodeChange, StudySpec
from headrace.spec.convert import to_proto
from headrace.spec.names import LABEL, STUDY, WORKER
from headrace.spec.values import params_to_proto
from headrace.v1 import event_pb2, spec_pb2, trial_pb2, worker_pb2
from headrace_services.scheduler.attempt_messages import attempt_code, schedule
from headrace_services.scheduler.core import time_limits
from headrace_services.scheduler.core.capacity import TurnCost
from headrace_services.scheduler.core.inputs import (
    ExitedArrived,
    ReportArrived,
    RestoredArrived,
)
from headrace_services.scheduler.core.placement.joints import Link
from headrace_services.scheduler.core.records import (
    Checkpoint,
    Decision,
    Lease,
    LeaseName,
    Trial,
)
from headrace_services.scheduler.session.refusals import Durable
from headrace_services.scheduler.store import checkpoint_stores
from headrace_services.scheduler.store.workers import Device, Greeting, StudyInfo

_KINDS = {worker_pb2.DEVICE_KIND_CPU: "CPU", worker_pb2.DEVICE_KIND_GPU: "GPU"}
_LINKS = frozenset(map(int, Link))
"""Links of a later version of the API count as unknown."""
_OUTCOMES = {
    worker_pb2.EXIT_OUTCOME_FINISHED: "FINISHED",
    worker_pb2.EXIT_OUTCOME_RELEASED: "RELEASED",
    worker_pb2.EXIT_OUTCOME_FAILED: "FAILED",
    worker_pb2.EXIT_OUTCOME_LOST: "LOST",
    worker_pb2.EXIT_OUTCOME_NO_CHECKPOINT: "NO_CHECKPOINT",
    worker_pb2.EXIT_OUTCOME_UNPREPARED: "UNPREPARED",
    worker_pb2.EXIT_OUTCOME_UNREACHED: "UNREACHED",
    worker_pb2.EXIT_OUTCOME_UNREADABLE_CHECKPOINT: "UNREADABLE_CHECKPOINT",
    worker_pb2.EXIT_OUTCOME_STORE_AWAY: "STORE_AWAY",
    worker_pb2.EXIT_OUTCOME_INFEASIBLE: "INFEASIBLE",
    worker_pb2.EXIT_OUTCOME_TIMED_OUT: "TIMED_OUT",
}
_TRIAL = re.compile(r"studies/([^/]+)/trials/([0-9]{1,18})")


def greeting(hello: worker_pb2.Hello) -> Greeting:
    """Check and convert a Hello. Raises InvalidFieldError."""
    named = [WORKER.problem(hello.worker, "hello.worker")]
    named += [LABEL.problem(name, "hello.labels") for name in hello.labels]
    problems = [found.violation() for found in named if found is not None]
    if not hello.incarnation:
        problems.append(
            _problem("hello.incarnation", "is empty", "Send a random id for every start of the daemon.")
        )
    if len({device.index for device in hello.devices}) != len(hello.devices):
        problems.append(
            _problem("hello.devices", "names an index twice", "Number the devices without duplicates.")
        )
    if any(device.kind not in _KINDS for device in hello.devices):
        problems.append(_problem("hello.devices.kind", "is not set", "Say CPU or GPU."))
    if problems:
        raise InvalidFieldError(problems)
    return Greeting(
        name=hello.worker,
        incarnation=hello.incarnation,
        devices=tuple(
            Device(
                index=device.index,
                kind=_KINDS[device.kind],
                model=device.model,
                memory_bytes=device.memory_bytes,
                uuid=device.uuid,
                defect=TROUBLE.kept(device.defect),
                unshared=device.unshared,
                links=tuple(link if link in _LINKS else Link.UNKNOWN for link in device.links),
                **_owned(device),
            )
            for device in hello.devices
        ),
        labels=dict(hello.labels),
        version=hello.version,
        log_dir=hello.log_dir,
        cpus=hello.cpus,
        host=hello.host,
        home=hello.home,
        home_lock=hello.home_lock,
        leaving=TROUBLE.kept(hello.leaving),
        store=_store(hello.store) if hello.store.url else None,
    )


def _store(said: worker_pb2.Store) -> checkpoint_stores.Found:
    return checkpoint_stores.Found(url=said.url, id=said.id, unseen=said.unseen)


def store_order(known: checkpoint_stores.Known) -> worker_pb2.StoreOrder:
    """The answer to a worker about its store."""
    return worker_pb2.StoreOrder(id=known.id, set_up=known.set_up, used=known.used)


def _owned(device: worker_pb2.Device) -> dict[str, Any]:
    if not device.HasField("bubbles"):
        return {}
    owner = device.bubbles
    return {"owner": owner.job or "a job without a name", "stage": owner.stage, "duty": owner.duty}


def _problem(field: str, message: str, remedy: str) -> Violation:
    return Violation(field=field, message=message, remedy=remedy)


def trial_of(lease: event_pb2.LeaseRef) -> tuple[str, int] | None:
    """Return the study's uid and the trial's number from a lease's id, or None if it names no trial."""
    match = _TRIAL.fullmatch(lease.trial)
    uid, dot, _ = lease.lease_id.partition(".")
    return (uid, int(match[2])) if dot and match and STUDY.admits(match[1]) else None


def checked_input(
    message: Durable, number: int, worker_id: int
) -> ReportArrived | RestoredArrived | ExitedArrived:
    """Check the bounds of a worker's message and convert it. Raises InvalidFieldError if it is out of bounds."""
    bounds.check(message)
    match message:
        case worker_pb2.Report():
            return _report(message, number, worker_id)
        case worker_pb2.Restored():
            return _restored(message, number, worker_id)
        case worker_pb2.Exited():
            return _exited(message, number, worker_id)
        case never:
            assert_never(never)


def _report(message: worker_pb2.Report, number: int, worker_id: int) -> ReportArrived:
    return ReportArrived(
        lease_id=message.lease.lease_id,
        number=number,
        attempt=message.lease.attempt,
        sequence=message.sequence,
        worker_id=worker_id,
        step=message.step,
        metrics=dict(message.metrics),
        checkpoint=checkpoint(message.checkpoint) if message.HasField("checkpoint") else None,
        train_time_s=seconds(message.train_time),
        warnings=tuple(WARNING.kept(text) for text in message.warnings),
        turn=_turn(message.turn) if message.HasField("turn") else None,
        code=attempt_code(message.code) if message.HasField("code") else None,
        schedules=tuple(map(schedule, message.schedules.schedules))
        if message.HasField("schedules")
        else None,
        returned=message.returned,
    )


def _turn(cost: event_pb2.TurnCost) -> TurnCost:
    return TurnCost(
        members=cost.members,
        turns=max(1, cost.turns),
        time_s=seconds(cost.time),
        memory_bytes=cost.memory_bytes,
        fresh=cost.fresh,
        first_step_s=seconds(cost.first_step),
        later_step_s=seconds(cost.later_step),
    )


def _restored(message: worker_pb2.Restored, number: int, worker_id: int) -> RestoredArrived:
    return RestoredArrived(
        lease_id=message.lease.lease_id,
        number=number,
        attempt=message.lease.attempt,
        sequence=message.sequence,
        worker_id=worker_id,
        read_time_s=seconds(message.read_time),
        code=attempt_code(message.code) if message.HasField("code") else None,
    )


def _exited(message: worker_pb2.Exited, number: int, worker_id: int) -> ExitedArrived:
    return ExitedArrived(
        lease_id=message.lease.lease_id,
        number=number,
        attempt=message.lease.attempt,
        sequence=message.sequence,
        worker_id=worker_id,
        outcome=_OUTCOMES.get(message.outcome, "LOST"),
        error=ERROR.kept(message.error),
        log_tail=LOG_TAIL.kept(message.log_tail),
        exit_code=message.exit_code,
        out_of_memory=message.out_of_memory,
        device_words=TROUBLE.kept(message.device_words),
        checkpoint=checkpoint(message.checkpoint) if message.HasField("checkpoint") else None,
        unsaved=WARNING.kept(message.unsaved),
        by_itself=message.by_itself,
        stored=tuple(message.stored),
        left_behind=WARNING.kept(message.left_behind),
        advice=WARNING.kept(message.advice),
        shared_fault=message.shared_fault,
        unconnected=message.unconnected,
    )


def checkpoint(ref: trial_pb2.CheckpointRef) -> Checkpoint:
    """Convert a CheckpointRef."""
    return Checkpoint(
        uri=ref.uri,
        step=ref.step,
        size_bytes=ref.size_bytes,
        manifest_sha256=ref.manifest_sha256,
        write_time_s=seconds(ref.write_time),
    )


def checkpoint_ref(record: Checkpoint) -> trial_pb2.CheckpointRef:
    """Convert a checkpoint back."""
    return trial_pb2.CheckpointRef(
        uri=record.uri,
        step=record.step,
        size_bytes=record.size_bytes,
        manifest_sha256=record.manifest_sha256,
        write_time=duration(record.write_time_s),
    )


def lease_ref(lease: Lease | LeaseName, study: str) -> event_pb2.LeaseRef:
    """Name a lease."""
    return event_pb2.LeaseRef(
        lease_id=lease.id, trial=f"studies/{study}/trials/{lease.number}", attempt=lease.attempt
    )


def assign(study: StudyInfo, trial: Trial, lease: Lease) -> worker_pb2.Assign:
    """The order to a worker to run a trial, up to the full budget that its lease started with."""
    budget = lease.budget or study.spec.budgets[0]
    message = worker_pb2.Assign(
        lease=lease_ref(lease, study.name),
        parameters=params_to_proto(trial.params),
        checkpoint=checkpoint_ref(lease.resume) if lease.resume else None,
        next_milestone=min(trial.next_save(study.spec, lease.begun) or budget, budget),
        grant=_grant(lease),
        seed=trial_seed(study.spec.seed, trial.number),
        resume_step=lease.begun,
        last_step=trial.step,
        rungs=[rung for rung in trial.rungs_ahead(study.spec) if rung <= budget] or [budget],
        max_steps=budget,
    )
    message.MergeFrom(_same_for_all(study))
    message.checkpoints_shared = trial.retains_checkpoints(study.spec)
    deleted = trial.best_checkpoint is None and bool(
        trial.earlier_ends
    )  # it passes that step again, and saves it
    if study.spec.keeps_best and trial.best_value is not None and not deleted:
        message.keep_best.best_value = trial.best_value
    if (left_s := time_limits.left_s(study.spec, trial)) is not None:
        message.time_left.FromTimedelta(timedelta(seconds=left_s))
    if trial.baseline:  # it ends no study
        message.ClearField("ends_study")
    by = message.surrogate.scale_by
    if by:  # a pilot's: the parameter belongs to the scheduler, and no user's function expects it
        message.surrogate.scale = int(trial.params.get(by, 1))
        message.surrogate.scale_by = ""
        message.parameters.CopyFrom(params_to_proto({k: v for k, v in trial.params.items() if k != by}))
        if message.surrogate.scale == 1:
            message.ClearField("surrogate")
    return message


def _grant(lease: Lease) -> worker_pb2.Grant:
    found = worker_pb2.Grant(slots=lease.slots, milli=lease.milli, memory_bytes=lease.memory_bytes)
    if lease.grant is not None:
        found.id, found.seats = lease.grant.id, lease.grant.seats
    return found


@lru_cache(maxsize=256)
def _same_for_all(study: StudyInfo) -> worker_pb2.Assign:
    """The part that is the same in the assignments of all trials of a study."""
    spec = study.spec
    wanted = to_proto(spec)
    if study.scale is not None:
        wanted.surrogate.scale = study.scale
    return worker_pb2.Assign(
        template=wanted.template,
        grant=worker_pb2.Grant(processes=wanted.resources.processes),
        metric=spec.objective.metric,
        further_metrics=[objective.metric for objective in spec.further_objectives],
        constraint_metrics=[constraint.metric for constraint in spec.constraints],
        checkpoints_kept=spec.checkpoints_kept,
        study_uid=study.uid,
        project=study.project,
        surrogate=wanted.surrogate if spec.surrogate is not None else None,
        gate=wanted.gate if spec.gate is not None else None,
        keep_best=event_pb2.KeepBest(goal=wanted.objective.goal, constraints=wanted.constraints)
        if spec.keeps_best
        else None,
        ends_study=_ends_study(spec, wanted),
        guards_code=spec.on_code_change is not OnCodeChange.WARN,
    )


def _ends_study(spec: StudySpec, told: spec_pb2.StudySpec) -> event_pb2.EndsStudy | None:
    if spec.until is None or spec.until.value is None:
        return None
    return event_pb2.EndsStudy(goal=told.objective.goal, constraints=told.constraints, value=spec.until.value)


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of a trial: 31 bits that depend only on the study's seed and the trial's number."""
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


_ACTIONS = {
    "CONTINUE": event_pb2.DECISION_ACTION_CONTINUE,
    "PAUSE": event_pb2.DECISION_ACTION_PAUSE,
    "STOP": event_pb2.DECISION_ACTION_STOP,
}


def decision(record: Decision) -> event_pb2.Decision:
    """Convert a decision."""
    return event_pb2.Decision(
        action=_ACTIONS[record.action],
        next_milestone=record.next_milestone,
        reason=record.reason,
        pinned=record.pinned,
    )


def seconds(duration: Duration) -> float:
    """Convert a duration of any size; `ToTimedelta` takes 10^9 days at most."""
    return duration.seconds + duration.nanos / 1e9


def duration(seconds: float) -> Duration:
    """Convert seconds."""
    converted = Duration()
    converted.FromTimedelta(timedelta(seconds=seconds))
    return converted
