"""The entries of the event log, one function for each kind. Details are the JSON forms of the messages in
event.proto."""

from collections.abc import Sequence

from msgspec.structs import asdict, replace

from headrace import held, not_known
from headrace.first_few import first_few
from headrace.spec import StudySpec
from headrace_services.scheduler.core import other_code
from headrace_services.scheduler.core.capacity import Capacity, Profile
from headrace_services.scheduler.core.inputs import ReportArrived
from headrace_services.scheduler.core.json_numbers import json_number
from headrace_services.scheduler.core.lifecycle import BY_USER, Action, State, StudyState
from headrace_services.scheduler.core.policies import Explanation, PausePrice
from headrace_services.scheduler.core.records import (
    Checkpoint,
    EarlierEnd,
    Event,
    Exploit,
    Lease,
    Params,
    Proposal,
    ProposalFailure,
    RungEntry,
    Slot,
    Trial,
    Value,
)

Json = dict[str, object]
_RUNGS_TOLD = 8


def trial_created(trial: Trial, proposal: Proposal | None = None) -> Event:
    """A trial was proposed."""
    listed = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
    what = "the baseline" if trial.baseline else "proposed"
    detail: Json = {
        "parameters": {"values": params_json(trial.params)},
        "bracket": trial.bracket,
        "baseline": trial.baseline,
    }
    if proposal is not None and proposal.source is not None:
        early = f", taken early as {proposal.early}" if proposal.early else ""
        what = f"has the configuration of trial {proposal.source}{early}"
        detail["proposal"] = proposal_json(proposal)
    elif proposal is not None:
        by = (
            "drawn at random, with"
            if proposal.sampler == "random"
            else f"proposed by {proposal.sampler} from"
        )
        what = f"{by} {_basis(proposal)}"
        detail["proposal"] = proposal_json(proposal)
    return Event(
        number=trial.number,
        kind="trial_created",
        message=f"trial {trial.number} {what}: {listed}",
        detail=detail,
    )


def proposal_failed(number: int, failure: ProposalFailure) -> Event:
    """The sampler failed at every try; the trial with this number gets a random configuration."""
    return Event(
        number=number,
        kind="proposal_failed",
        message=(
            f"the sampler failed {failure.attempts} times at proposal {failure.number}, "
            f"so trial {number} is a random draw: {failure.error}"
        ),
        detail={"proposal": failure.number, "attempts": failure.attempts, "error": failure.error},
    )


def trial_moved(before: Trial, after: Trial, action: Action, slots: tuple[Slot, ...]) -> Event:
    """A trial went from one state to another."""
    worker = slots[0].worker_name if slots else ""
    where = f" on {worker}" if worker else ""
    why = f": {after.detail}" if after.detail else ""
    detail: Json = {
        "from_state": f"TRIAL_STATE_{before.state}",
        "to_state": f"TRIAL_STATE_{after.state}",
        "action": action.value,
        "attempt": after.attempt,
        "worker": f"workers/{worker}" if worker else "",
        "slots": [slot.index for slot in slots],
        "detail": after.detail,
    }
    if after.reason:
        detail["termination_reason"] = f"TERMINATION_REASON_{after.reason}"
    moved = f"{before.state.lower()} → {after.state.lower()} ({action})"
    if after.reason:
        moved = after.reason.lower().replace("_", " ")
    elif action is Action.REOPEN:
        moved = "continues"
    elif action is Action.INTERRUPT:
        goes_on = "resumes from its last checkpoint" if after.state is State.PAUSED else "starts over"
        unless = ", unless that client reports first" if after.lapsed else ""
        moved, why = "interrupted", f"{why}; it {goes_on}{unless}"
    elif action is Action.RECLAIM:
        moved = "runs again"
    return Event(
        number=after.number,
        kind="trial_moved",
        message=f"trial {after.number} {moved}{where}{why}",
        detail=detail,
    )


def trial_user_paused(number: int, *, user_paused: bool) -> Event:
    """A user paused or resumed a trial; it moves when it can."""
    message = held.of_trial(number, held.PAUSED if user_paused else held.RESUMED)
    return Event(number=number, kind="note", message=message, detail={})


def study_begins(after: str, scale: str) -> Event:
    """The study that this one waits for has completed; `scale` is what its pilot has chosen."""
    message = f"study '{after}' has completed, so this one begins{scale}"
    return Event(number=None, kind="note", message=message, detail={})


def worker_avoided(worker: str, failures: int, error: str) -> Event:
    """A worker gets no more trials of the study."""
    plural = "s" * (failures != 1)
    return Event(
        number=None,
        kind="note",
        message=(
            f"worker {worker} gets no more trials of this study: {failures} attempt{plural} failed there before any "
            f"trial had reported anything, and other workers can run them; the last one: {error}"
        ),
        detail={},
    )


def worker_unprepared(worker: str, error: str) -> Event:
    """A worker cannot prepare the study's program, and gets no more trials of it."""
    message = f"worker {worker} gets no more trials of this study: it could not prepare the program: {error}"
    return Event(number=None, kind="note", message=message, detail={})


def trial_goes_elsewhere(number: int, worker: str, times: int, error: str) -> Event:
    """A trial is placed on other workers for a while."""
    message = (
        f"trial {number} moves to another worker: {times} times in a row worker {worker} did not reach its "
        f"program, the last time: {error}"
    )
    return Event(number=number, kind="note", message=message, detail={})


def bundles_sized(profile: Profile, found: Capacity) -> Event:
    """The number of trials that share a process has changed."""
    alike = f" with {profile.key}" if profile.key not in ("", "[]") else ""
    return Event(
        number=None,
        kind="note",
        message=f"bundles on {profile.device}{alike} hold up to {found.trials} trials from now on: {found.why}",
        detail={},
    )


def report_recorded(lease: Lease, sequence: int, report: ReportArrived) -> Event:
    """A report was stored."""
    listed = ", ".join(f"{name}={_short(value)}" for name, value in sorted(report.metrics.items()))
    detail: Json = {
        "attempt": lease.attempt,
        "sequence": sequence,
        "step": report.step,
        "metrics": {name: json_number(value) for name, value in report.metrics.items()},
    }
    if report.checkpoint:
        detail["checkpoint"] = checkpoint_json(report.checkpoint)
    if report.code is not None:
        detail["code"] = report.code.digest
    return Event(
        number=lease.number,
        kind="report_recorded",
        message=f"trial {lease.number} at step {report.step}: {listed or 'no metric'}",
        detail=detail,
    )


def trial_warned(number: int, warning: str) -> Event:
    """Something is wrong with a trial, but does not end it."""
    message = f"trial {number} warns: {warning}"
    return Event(number=number, kind="trial_warned", message=message, detail={"warning": warning})


def process_not_reused(number: int, left_behind: str) -> Event:
    """A process of a study that reuses processes ended with its trial."""
    return trial_warned(number, f"its process ran no other trial: {left_behind}")


def code_changed(
    lease: Lease, digest: str, files: Sequence[str], first_seen: Sequence[str], *, refused: bool
) -> Event:
    """An attempt runs other code than the study started with, or may do so, or was `refused` because of it."""
    what = "was to run" if refused else "runs"
    message = f"trial {lease.number} {what} other code than the study started with: {first_few(files)}"
    if all(map(not_known.is_marked, files)):
        message = f"trial {lease.number}: {not_known.in_words(files)}"
    detail: Json = {
        "attempt": lease.attempt,
        "digest": digest,
        "files": list(files),
        "first_seen": list(first_seen),
        "refused": refused,
    }
    return Event(
        number=lease.number,
        kind="code_changed",
        message=message,
        detail=detail,
    )


def metrics_missing(number: int, missing: list[str], reported: list[str]) -> Event:
    """The study's first report lacks metrics that the study reads."""
    quoted = ", ".join(f"'{name}'" for name in missing)
    return Event(
        number=number,
        kind="metrics_missing",
        message=(
            f"trial {number}'s first report has no {quoted}, which the study reads; "
            f"it has {', '.join(reported) or 'nothing'}"
        ),
        detail={"missing": missing, "reported": reported},
    )


def rung_recorded(entry: RungEntry) -> Event:
    """A trial was recorded at a rung."""
    value = "no value" if entry.value is None else _short(entry.value)
    result: Json = {
        "rung": entry.rung,
        "milestone": entry.milestone,
        "step": entry.step,
        "arrival": entry.arrival,
    }
    if entry.value is not None:
        result["value"] = json_number(entry.value)
    if entry.cost is not None:
        result["cost"] = {name: value for name, value in asdict(entry.cost).items() if value is not None}
    return Event(
        number=entry.number,
        kind="rung_recorded",
        message=f"trial {entry.number} recorded at the rung at step {entry.milestone}: {value}",
        detail={"bracket": entry.bracket, "result": result},
    )


def proposals_ended(proposals: int) -> Event:
    """The sampler has no more configurations."""
    return Event(
        number=None,
        kind="proposals_ended",
        message=f"all {proposals} configurations are proposed",
        detail={"proposals": proposals},
    )


def decision_made(number: int, action: str, explanation: Explanation, said: str) -> Event:
    """The policy decided on a trial; `said` is the reason in words."""
    detail: Json = {
        "rule": explanation.rule,
        "bracket": explanation.bracket,
        "rung": explanation.rung,
        "milestone": explanation.milestone,
        "rank": explanation.rank,
        "results": explanation.results,
        "kept": explanation.kept,
        "sentence": explanation.sentence,
    }
    if explanation.value is not None:
        detail["value"] = json_number(explanation.value)
    if explanation.cutoff_value is not None:
        detail["cutoff_value"] = json_number(explanation.cutoff_value)
    for name in ("expected_value", "expected_spread", "probability"):
        figure = getattr(explanation, name)
        if figure is not None:
            detail[name] = json_number(figure)
    if explanation.pause_price is not None:
        detail["pause_price"] = _price_json(explanation.pause_price)
    outcome = {"PAUSE": "paused", "STOP": "stopped"}.get(action, "continues")
    told = said if said.startswith((outcome, BY_USER)) else f"{outcome}: {said}"
    return Event(
        number=number,
        kind="decision_made",
        message=f"trial {number} {told}",
        detail={"action": f"DECISION_ACTION_{action}", "explanation": detail},
    )


def with_slot_goes_to(event: Event, trial: str) -> Event:
    """Return a decision with the trial that got the freed slot added."""
    explanation = event.detail["explanation"]
    assert isinstance(explanation, dict)
    number = trial.rpartition("/")[2]
    return replace(
        event,
        message=f"{event.message}; its slot goes to trial {number}",
        detail={**event.detail, "explanation": {**explanation, "slot_goes_to": trial}},
    )


def trial_exploited(study: str, exploit: Exploit) -> Event:
    """A trial took over another's state, with a mutated configuration."""
    before = {name: _short(value) for name, value in exploit.previous_params.items()}
    listed = ", ".join(
        f"{name}={before.get(name, 'none')} → {_short(value)}"
        for name, value in exploit.params.items()
        if exploit.previous_params.get(name) != value
    )
    detail: Json = {
        "rung": exploit.rung,
        "step": exploit.checkpoint.step,
        "donor": f"studies/{study}/trials/{exploit.donor}",
        "checkpoint": checkpoint_json(exploit.checkpoint),
        "parameters": {"values": params_json(exploit.params)},
        "previous_parameters": {"values": params_json(exploit.previous_params)},
    }
    if exploit.donor_value is not None:
        detail["donor_value"] = json_number(exploit.donor_value)
    marked = exploit.checkpoint.other_code
    by = f", trained in part by other code ({other_code.steps_in_words(marked)})" if marked else ""
    return Event(
        number=exploit.number,
        kind="trial_exploited",
        message=(
            f"trial {exploit.number} takes over trial {exploit.donor} at step {exploit.checkpoint.step}{by}: {listed}"
        ),
        detail={"exploit": detail},
    )


def slots_reserved(number: int, worker: str, slots: tuple[int, ...], ready_in_s: float | None) -> Event:
    """Slots are reserved for a trial that fits nowhere."""
    detail: Json = {"worker": f"workers/{worker}", "slots": len(slots)}
    when = ""
    if ready_in_s is not None:
        detail["ready_in_s"] = ready_in_s
        when = (
            f", free in {ready_in_s:.0f} s by measured times"
            if ready_in_s
            else ", free at the next reports there"
        )
    plural = "s" * (len(slots) != 1)
    return Event(
        number=number,
        kind="slots_reserved",
        message=f"trial {number} fits nowhere yet: {len(slots)} slot{plural} of {worker} are reserved for it{when}",
        detail=detail,
    )


def trial_preempted(number: int, study: str, why: str) -> Event:
    """A trial gives its slots to another study, with its checkpoint."""
    detail: Json = {"in_favour_of": f"studies/{study}" if study else "", "reason": why}
    return Event(
        number=number, kind="trial_preempted", message=f"trial {number} is preempted: {why}", detail=detail
    )


def trial_placed(number: int, slots: tuple[Slot, ...], milli: int, rule: str, sentence: str) -> Event:
    """A trial got slots for a reason worth recording."""
    detail: Json = {
        "rule": rule,
        "worker": f"workers/{slots[0].worker_name}",
        "slots": [slot.index for slot in slots],
        "milli": milli,
        "sentence": sentence,
    }
    return Event(
        number=number,
        kind="trial_placed",
        message=f"trial {number} placed ({rule}): {sentence}",
        detail=detail,
    )


def study_moved(before: StudyState, after: StudyState, detail: str) -> Event:
    """A study went from one state to another."""
    word = "resumed" if after is StudyState.ACTIVE else after.lower()
    said = detail if detail.startswith(word) else f"{word}: {detail}"
    return Event(
        number=None,
        kind="study_moved",
        message=f"study {said}",
        detail={"from_state": before.value, "to_state": after.value, "detail": detail},
    )


def study_closes(why: str, trials: int, grace_s: float) -> Event:
    """The study ends for this reason, and its trials save their state and stop."""
    told = (
        "the trial that runs saves its state and stops"
        if trials == 1
        else f"{trials} trials save their state and stop"
    )
    return Event(
        number=None, kind="note", message=f"study ends: {why}; {told}, within {grace_s:.0f} s", detail={}
    )


def study_extended(before: StudySpec, after: StudySpec) -> Event:
    """A study was given more configurations, or a larger full budget."""
    detail: Json = {
        "trials_before": before.max_trials,
        "trials": after.max_trials,
        "steps_before": before.max_steps,
        "steps": after.max_steps,
    }
    said = f"{before.max_trials} → {after.max_trials} configurations"
    if after.max_steps > before.max_steps:
        rungs = [level for level in after.rungs() if level > before.max_steps]
        listed = f", with rungs at {', '.join(map(str, rungs))}" if 1 < len(rungs) <= _RUNGS_TOLD else ""
        said = f"full budget {before.max_steps} → {after.max_steps} steps{listed}"
    return Event(number=None, kind="study_extended", message=f"study extended: {said}", detail=detail)


def trial_stays(number: int, why: str) -> Event:
    """A trial that had the full budget does not continue to a larger one."""
    message = f"trial {number} does not continue to the new full budget: {why}"
    return Event(number=number, kind="note", message=message, detail={})


def result_stays(number: int, end: EarlierEnd, spec: StudySpec) -> Event:
    """A trial that a user let continue has failed since, and counts with its earlier result."""
    values = {one.metric: end.metrics.get(one.metric) for one in spec.objectives}
    if not spec.further_objectives:
        values = {spec.objective.metric: end.score}
    said = ", ".join(f"{name} {_short(value)}" for name, value in values.items() if value is not None)
    how = f"was {end.reason.lower().replace('_', ' ')} at step {end.step}"
    if end.budget is not None:
        how = f"completed the full budget of {end.budget} step{'s' * (end.budget != 1)}"
    kept = f"{said} at step {end.score_step}"
    message = f"trial {number} keeps its result, {kept}, from before it continued: it {how}"
    return Event(number=number, kind="note", message=message, detail={})


def checkpoint_json(checkpoint: Checkpoint) -> Json:
    """Return a CheckpointRef as JSON."""
    return {
        "uri": checkpoint.uri,
        "step": checkpoint.step,
        "size_bytes": checkpoint.size_bytes,
        "manifest_sha256": checkpoint.manifest_sha256,
        "write_time": f"{checkpoint.write_time_s:.6f}s",
    }


def proposal_json(proposal: Proposal) -> Json:
    """Return a Proposal as JSON."""
    found: Json = {
        "sampler": proposal.sampler,
        "milestone": proposal.level,
        "results": proposal.results,
        "warm_results": proposal.warm_results,
        "pending": proposal.pending,
    }
    if proposal.generation is not None:
        found["generation"] = proposal.generation
    if proposal.source is not None:
        found["source"] = proposal.source
    if proposal.early:
        found["early"] = proposal.early
    return found


def _basis(proposal: Proposal) -> str:
    """The basis of a proposal, in words."""
    at = f" at step {proposal.level}" if proposal.level else ""
    if proposal.sampler == "multi_fidelity":
        at = " at all rungs"
    warm = f" and {proposal.warm_results} of an earlier study" if proposal.warm_results else ""
    generation = f", generation {proposal.generation}" if proposal.generation is not None else ""
    return f"{proposal.results} results{at}{warm}, {proposal.pending} pending{generation}"


def params_json(params: Params) -> Json:
    """Return the values of a ParameterAssignment as JSON."""
    return {name: _value_json(value) for name, value in params.items()}


def _price_json(price: PausePrice) -> Json:
    return {**asdict(price), "price_s": price.price_s, "pays": price.pays}


def _value_json(value: Value) -> Json:
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int):
        return {"int_value": value}
    if isinstance(value, float):
        return {"float_value": value}
    return {"string_value": value}


def _short(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
