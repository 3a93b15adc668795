"""The cluster's messages as values: who holds what, what is kept for whom, and what each study has of it."""

from datetime import UTC

from headrace.client.model import Holder, SlotReservation, StudyShare
from headrace.client.names import trial_ref
from headrace.v1 import study_pb2


def holders(slot: study_pb2.SlotStatus) -> tuple[Holder, ...]:
    """Everyone on a slot."""
    return tuple(
        Holder(
            trial=trial, share=holder.milli / 1000, memory_bytes=holder.memory_bytes, leaving=holder.leaving
        )
        for holder in slot.holders
        if (trial := trial_ref(holder.trial)) is not None
    )


def reservation(proto: study_pb2.WorkerStatus) -> SlotReservation | None:
    """For whom slots of a worker are kept."""
    kept = proto.reservation
    trial = trial_ref(kept.trial)
    if trial is None:
        return None
    ready = kept.ready.ToDatetime(UTC) if kept.HasField("ready") else None
    return SlotReservation(trial=trial, slots=kept.slots, since=kept.since.ToDatetime(UTC), ready=ready)


def share(proto: study_pb2.StudyShare) -> StudyShare:
    """A study's share."""
    return StudyShare(
        study=proto.study.removeprefix("studies/"),
        weight=proto.weight,
        priority=proto.priority,
        gpus=proto.gpus,
        cpu_slots=proto.cpu_slots,
        gpu_seconds=proto.gpu_seconds,
        cpu_seconds=proto.cpu_seconds,
        virtual_time_s=proto.virtual_time_s,
        waiting=proto.waiting,
    )
