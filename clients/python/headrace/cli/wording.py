"""How states are shown on a terminal; see `headrace.client.wording` for values.

States and reasons are shown by a word and a symbol first and by colour second. The colours are distinguishable for
colour-blind readers (blue, orange, grey, and magenta for failure) and are never the only sign.
"""

from pathlib import Path

from headrace.cli.states import STYLES, SYMBOLS, state
from headrace.client.machines import Worker
from headrace.client.model import StudyInfo, StudyState
from headrace.client.wording import (
    ago,
    best_of_other_code,
    counted,
    duration,
    earlier_end,
    failures,
    first_step,
    goals,
    kept_result,
    members,
    misses,
    number,
    objectives,
    other_code,
    params,
    percent,
    plural,
    rungs_listed,
    scalar,
    scored,
    shown_values,
    silence,
    size,
    thinned,
    unreported,
    warm_start,
)
from headrace.spec import AshaArrival, AshaFromTheTop, AutoPolicy, PbtPolicy, StudySpec

__all__ = [
    "ANOTHER",
    "STYLES",
    "SYMBOLS",
    "ago",
    "best_of_other_code",
    "counted",
    "duration",
    "earlier_end",
    "ended",
    "failures",
    "first_step",
    "goals",
    "kept_off",
    "kept_result",
    "members",
    "misses",
    "number",
    "objectives",
    "other_code",
    "params",
    "percent",
    "plural",
    "population",
    "rungs_listed",
    "scalar",
    "scored",
    "shown_values",
    "silence",
    "size",
    "state",
    "thinned",
    "unreported",
    "waits",
    "warm_start",
]

ANOTHER = "another project's"
"""Replaces the name of a study or a trial that is not shown."""


def policy(spec: StudySpec) -> str:
    """What the default policy does, in a few words; empty for a policy that the user chose by name."""
    if not isinstance(spec.policy, AutoPolicy):
        return ""
    said = f"auto: the best 1/{spec.policy.eta} of a rung are promoted, by ASHA."
    asha = spec.policy.asha(spec.sampler)
    if asha.arrival is AshaArrival.OPTIMISTIC:
        said += (
            " The first to arrive at a rung are promoted without a comparison, in case early ranks mislead."
        )
    else:
        said += f" {spec.sampler.kind} learns from results, so every trial waits to be compared."
    if isinstance(asha, AshaFromTheTop):
        said += " Rungs are counted down from the full budget."
    if spec.policy.effort:
        said += (
            f" When no promotion is left, waiting trials continue until {spec.policy.effort:.3g} of what all trials "
            "would cost at the full budget is used up (effort)."
        )
    return said


def population(spec: StudySpec, file: Path) -> str:
    """What a population requires of its training function; empty for any other study."""
    if not isinstance(spec.policy, PbtPolicy):
        return ""
    mutable = ", ".join(spec.policy.mutable or spec.space)
    return (
        f"Members of the population change {mutable} while they train: set what changes inside the loop, from "
        f"t.params, and leave what shapes the model out of policy.mutable. `headrace check {file}` proves it."
    )


def waits(study: StudyInfo) -> str:
    """The addition to the state of a study that waits: `, waits for 4 GPUs`; empty for any other study."""
    return f", waits for {study.waits_for}" if study.waits_for else ""


def ended(study_state: StudyState, detail: str) -> str:
    """The text for a study's end or current state: `was stopped by a user`, `failed: no trial reported 'loss'`."""
    word = study_state.value
    said = detail if detail.startswith(word) else f"{word}: {detail}" if detail else word
    return f"was {said}" if study_state is StudyState.STOPPED else said


def until(spec: StudySpec) -> str:
    """What ends a study before all its trials have ended: `loss ≤ 0.1 or 2 hours`; empty if nothing does."""
    return " or ".join(spec.until.conditions(spec.objective)) if spec.until is not None else ""


def until_now(study: StudyInfo) -> str:
    """The same, with how close the study is to each condition."""
    until, now = study.spec.until, study.until
    if until is None or now is None:
        return ""
    tried = None if study.state.ended else now.tried
    said = dict(zip(until.named(), until.conditions(study.spec.objective, tried=tried), strict=True))
    if "hours" in said:
        said["hours"] = hours_now(study)
    return " or ".join(said.values())


def hours_now(study: StudyInfo) -> str:
    """A study's hours and when they end, which is a date only while a trial runs: `2 hours (until 2031-05-06
    07:08)`. Empty without a limit in hours.
    """
    until, now = study.spec.until, study.until
    if until is None or until.hours is None:
        return ""
    said = f"{until.hours:g} hour{'s' * (until.hours != 1)}"
    if now is None or study.state.ended:
        return said
    if now.deadline is not None:
        return f"{said} (until {now.deadline.astimezone():%Y-%m-%d %H:%M})"
    if now.time_left_s is not None:
        return f"{said} ({duration(now.time_left_s)} left, counted only while a trial runs)"
    return said


def grant(gpus: int, gpu_milli: int, cpus: int) -> str:
    """How much a trial takes: `2 GPUs, 8 cores`, `0.25 of a GPU`, `4 CPU slots`."""
    if not gpus and not gpu_milli:
        return plural(max(1, cpus), "CPU slot")
    cores = f", {plural(cpus, 'core')}" if cpus else ""
    return (plural(gpus, "GPU") if gpus else f"{gpu_milli / 1000:g} of a GPU") + cores


def off(worker: Worker) -> str:
    """In one or two words, why a connected worker gets no trials; empty if it does."""
    if worker.draining or worker.cordoned:
        return "draining" if worker.draining else "cordoned"
    return "suspended" if worker.next_try is not None else ""


def suspended(worker: Worker) -> str:
    """Why nothing starts on a worker for a while, and until when; empty if trials start there."""
    if not worker.suspended:
        return ""
    if worker.next_try is None:
        return f"was suspended and is tried again: {worker.suspended}"
    return f"is suspended until {worker.next_try.astimezone():%H:%M:%S}: {worker.suspended}"


def kept_off(worker: Worker) -> list[str]:
    """What keeps trials off a worker and its slots, one sentence each."""
    name, said = worker.name, []
    if worker.draining:
        left = f"; {plural(len(worker.trials), 'trial')} to leave" if worker.trials else ""
        said.append(f"{name} is draining and gets no trials: {worker.draining}{left}")
    if worker.cordoned:
        said.append(f"{name} gets no trials, it is cordoned: {worker.cordoned}")
    if why := suspended(worker):
        said.append(f"{name} {why}")
    said += [
        f"{name} slot {slot.index} gets no trials, its device failed: {slot.defect}. "
        f"When it is fixed: `headrace uncordon {name} --device {slot.index}`."
        for slot in worker.slots
        if slot.defect
    ]
    said += [
        f"{name} slot {cordon.device} gets no trials, it is cordoned: {cordon.reason or 'no reason given'}"
        for cordon in worker.cordons
        if not cordon.quarantined
    ]
    return said
