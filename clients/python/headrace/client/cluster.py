"""The cluster's messages as values: who holds which slots, which slots are reserved, and each study's share."""

from datetime import UTC

from headrace.client.machines import Cordon, Holder, Slot, SlotLoad, SlotReservation, StudyShare, Worker
from headrace.client.names import trial_ref, worker_id
from headrace.v1 import study_pb2


def worker(proto: study_pb2.WorkerStatus) -> Worker:
    """A worker with its slots."""
    return Worker(
        name=worker_id(proto.name),
        connected=proto.connected,
        slots=tuple(
            Slot(
                index=s.index,
                device=s.device,
                memory_bytes=s.memory_bytes,
                trial=trial_ref(s.trial),
                holders=holders(s),
                elsewhere=sum(holder.milli for holder in s.holders if not holder.trial) / 1000,
                defect=s.defect,
                uuid=s.uuid,
                loads=tuple(
                    SlotLoad(
                        minute=load.minute.ToDatetime(UTC),
                        utilization=load.utilization if load.HasField("utilization") else None,
                        memory_used_bytes=load.memory_used_bytes,
                    )
                    for load in s.loads
                ),
            )
            for s in proto.slots
        ),
        labels=dict(sorted(proto.labels.items())),
        last_seen=proto.last_seen.ToDatetime(UTC) if proto.HasField("last_seen") else None,
        version=proto.version,
        trouble=proto.trouble,
        rejected=proto.rejected,
        reused=proto.reused,
        mps=proto.mps,
        avoided_by=tuple(proto.avoided_by),
        reservation=reservation(proto),
        certificate_end=proto.certificate_end.ToDatetime(UTC) if proto.HasField("certificate_end") else None,
        draining=proto.draining,
        drained_since=proto.drain_time.ToDatetime(UTC) if proto.HasField("drain_time") else None,
        cordoned=proto.cordoned,
        cordons=tuple(
            Cordon(
                device=cordon.device,
                uuid=cordon.uuid,
                reason=cordon.reason,
                quarantined=cordon.quarantined,
                since=cordon.time.ToDatetime(UTC) if cordon.HasField("time") else None,
            )
            for cordon in proto.cordons
        ),
        suspended=proto.suspended,
        next_try=proto.next_try_time.ToDatetime(UTC) if proto.HasField("next_try_time") else None,
    )


def holders(slot: study_pb2.SlotStatus) -> tuple[Holder, ...]:
    """All trials on a slot, except those of other projects."""
    return tuple(
        Holder(
            trial=trial,
            share=holder.milli / 1000,
            memory_bytes=holder.memory_bytes,
            leaving=holder.leaving,
            bundle=holder.bundle,
            bundle_seats=holder.bundle_seats,
        )
        for holder in slot.holders
        if (trial := trial_ref(holder.trial)) is not None
    )


def reservation(proto: study_pb2.WorkerStatus) -> SlotReservation | None:
    """The trials for which slots of a worker are reserved."""
    kept = proto.reservation
    trial = trial_ref(kept.trial)
    if trial is None:
        return None
    ready = kept.ready.ToDatetime(UTC) if kept.HasField("ready") else None
    return SlotReservation(trial=trial, slots=kept.slots, since=kept.since.ToDatetime(UTC), ready=ready)


def share(proto: study_pb2.StudyShare) -> StudyShare:
    """A study's share."""
    return StudyShare(
        study=proto.study.removeprefix("studies/") or None,
        weight=proto.weight,
        priority=proto.priority,
        gpus=proto.gpus,
        cpu_slots=proto.cpu_slots,
        gpu_seconds=proto.gpu_seconds,
        cpu_seconds=proto.cpu_seconds,
        virtual_time_s=proto.virtual_time_s,
        waiting=proto.waiting,
    )
