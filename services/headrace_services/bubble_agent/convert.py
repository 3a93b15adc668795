"""Converts what the agent knows to messages."""

from typing import Final

from headrace.v1 import bubble_pb2 as pb
from headrace_services.bubble_agent.agent import Agent, Beside
from headrace_services.bubble_agent.job import Job
from headrace_services.bubble_agent.link import Link

NANO: Final = 1e-9


def job_message(agent: Agent, job: Job) -> pb.BubbleJob:
    """One job with its stages on this machine."""
    controller, level = job.controller, job.level
    registrations = [stage.registration for stage in job.stages.values()]
    found = pb.BubbleJob(
        name=job.name,
        stages=registrations[0].stages,
        micro_batches=registrations[0].micro_batches,
        disagreement=job.disagreement(),
        level=job.level_index,
        windows_share=level.windows,
        members_share=level.members,
        control_share=job.control_share,
        disabled=level.windows == 0,
        why=controller.why,
        local_stages=[_stage(one) for (name, *_), one in sorted(agent.stages.items()) if name == job.name],
        peers=sorted(job.peers),
    )
    seen = controller.slowdown()
    if seen is not None:
        found.slowdown.CopyFrom(
            pb.BubbleSlowdown(
                mean=seen.mean,
                low=seen.low,
                high=seen.high,
                filled_steps=seen.filled,
                control_steps=seen.control,
            )
        )
    return found


def timeline_message(agent: Agent, job: Job, *, now: int, seconds: float) -> pb.GetBubbleTimelineResponse:
    """Windows, steps and quanta that ended in the last seconds."""
    origin = now - int(seconds / NANO)
    tracks = [
        pb.BubbleTrack(replica=replica, stage=stage, spans=_spans(one.link, origin))
        for (name, replica, stage), one in sorted(agent.stages.items())
        if name == job.name
    ]
    return pb.GetBubbleTimelineResponse(job=job.name, seconds=seconds, tracks=tracks)


def _stage(beside: Beside) -> pb.BubbleStage:
    stage, registration = beside.stage, beside.stage.registration
    found = pb.BubbleStage(
        replica=registration.replica,
        stage=registration.stage,
        pid=registration.pid,
        device=registration.device,
        gate=str(beside.link.file.path),
        steps=stage.steps,
        step_seconds=stage.step_ns() * NANO,
        waiting_share=stage.waiting_share(),
        duty=stage.duty(beside.orders) if beside.orders.permitted else 0.0,
        free_bytes=stage.free_bytes(),
        windows=[
            pb.BubbleWindow(slot=slot, predicted_seconds=length * NANO)
            for slot, length in sorted(beside.orders.table.items())
        ],
        harvested_seconds=beside.harvested * NANO,
        waited_seconds=stage.waited * NANO,
        relearnt=stage.predictor.relearnt,
        problem=beside.problem,
    )
    if beside.trial is not None:
        trial, record = beside.trial, beside.watchman.record
        found.trial.CopyFrom(
            pb.BubbleTrial(
                pid=trial.pid,
                harvested_seconds=trial.harvested * NANO,
                quanta=trial.quanta,
                overruns=trial.overruns,
                longest_overrun_seconds=trial.overrun_longest * NANO,
                quantum_seconds=trial.quantum * NANO,
                offences=record.offences,
                stopped=record.stopped,
                evicted=record.evicted,
            )
        )
    return found


def _spans(link: Link, origin: int) -> list[pb.BubbleSpan]:
    def span(kind: pb.BubbleSpanKind.ValueType, began: int, ended: int, number: int) -> pb.BubbleSpan:
        return pb.BubbleSpan(
            kind=kind, began=(began - origin) * NANO, ended=(ended - origin) * NANO, number=number
        )

    kinds = (pb.BUBBLE_SPAN_KIND_STEP, pb.BUBBLE_SPAN_KIND_CONTROL_STEP)
    found = [span(kinds[one.control], one.began, one.ended, one.step) for one in link.steps]
    found += [span(pb.BUBBLE_SPAN_KIND_WINDOW, one.began, one.ended, one.slot) for one in link.windows]
    found += [
        span(pb.BUBBLE_SPAN_KIND_QUANTA, one.began, one.ended - one.late, one.quanta)
        for one in link.stretches
    ]
    found += [
        span(pb.BUBBLE_SPAN_KIND_LATE, one.ended - one.late, one.ended, 0)
        for one in link.stretches
        if one.late
    ]
    return sorted((one for one in found if one.ended >= 0), key=lambda one: (one.ended, one.kind))
