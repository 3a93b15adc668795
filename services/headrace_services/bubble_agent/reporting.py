"""The agent's state as text."""

from headrace.cli.output import Output
from headrace.v1 import bubble_pb2 as pb

COLUMNS = ("stage", "step", "waits", "windows", "usable", "harvested", "of waits", "trial", "overruns")


def show(output: Output, answer: pb.ListBubbleJobsResponse) -> None:
    """Prints every job with its stages."""
    if not answer.jobs:
        output.line(f"No pipeline runs on this machine (agent {answer.agent_pid}, {answer.folder}).")
        output.note(
            "A training job attaches with `headrace_torch.bubbles.attach(engine)` after deepspeed.initialize."
        )
    for number, job in enumerate(answer.jobs):
        if number:
            output.line()
        _job(output, job)


def _job(output: Output, job: pb.BubbleJob) -> None:
    output.line(f"job {job.name}: {job.stages} stages, {job.micro_batches} micro-batches per step")
    output.line(f"budget: {_budget(job)}; control steps {job.control_share:.0%}")
    output.line(f"slowdown: {_slowdown(job)}")
    for text in (job.disagreement, job.why):
        if text:
            output.line(text)
    if job.peers:
        output.line(f"other agents: {', '.join(job.peers)}")
    output.table(COLUMNS, [_row(stage) for stage in job.local_stages], right=COLUMNS[1:])
    for stage in job.local_stages:
        for text in (stage.problem, _trial_state(stage)):
            if text:
                output.line(f"stage {_place(stage)}: {text}")


def _budget(job: pb.BubbleJob) -> str:
    if job.disabled:
        return "nothing (disabled)"
    members = "" if job.members_share == 1 else f", {job.members_share:.0%} of the members"
    return f"{job.windows_share:.0%} of each window{members}"


def _slowdown(job: pb.BubbleJob) -> str:
    if not job.HasField("slowdown"):
        return "not known yet: it needs 20 steps with trials and 20 without"
    seen = job.slowdown
    return (
        f"{seen.mean:+.2%}, between {seen.low:+.2%} and {seen.high:+.2%} (one-sided 95 % bounds; "
        f"{seen.filled_steps} steps with trials, {seen.control_steps} without)"
    )


def _place(stage: pb.BubbleStage) -> str:
    return f"{stage.stage}" if not stage.replica else f"{stage.stage}.{stage.replica}"


def _row(stage: pb.BubbleStage) -> tuple[str, ...]:
    trial = stage.trial if stage.HasField("trial") else None
    share = stage.harvested_seconds / stage.waited_seconds if stage.waited_seconds else 0.0
    return (
        _place(stage),
        f"{stage.step_seconds * 1e3:.1f} ms",
        f"{stage.waiting_share:.0%}",
        f"{len(stage.windows)}",
        f"{stage.duty:.0%}",
        f"{stage.harvested_seconds:.1f} s",
        f"{share:.0%}",
        "-" if trial is None else str(trial.pid),
        "-" if trial is None else f"{trial.overruns} of {trial.quanta + trial.overruns}",
    )


def _trial_state(stage: pb.BubbleStage) -> str:
    trial = stage.trial
    if not trial.offences:
        return ""
    told = f"trial {trial.pid} did not close its gate {trial.offences} times"
    if trial.evicted:
        told += "; it must leave at its next checkpoint"
    return told + ("; it is stopped now" if trial.stopped else "")
