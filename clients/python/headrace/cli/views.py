"""The JSON that commands print with `--json`: stable keys, documented here, one function per object.

`milestone` is the step of a rung, as in the tables for people. `rung` is its place among the study's rungs,
counted from 0. An `attempt` is one placement of a trial, counted from 1.

Keys are only ever added. A value that does not exist is null. A number that JSON lacks is the string `"NaN"`,
`"Infinity"` or `"-Infinity"`. A time is ISO 8601 in UTC. Names are bare: `"digits"`, trial `3`, worker
`"node-1"`.
"""

from dataclasses import asdict, fields
from typing import Any

from headrace.cli import plans
from headrace.cli.loads import loads_json
from headrace.client import events as ev
from headrace.client.machines import Worker
from headrace.client.model import (
    EarlierEnd,
    Exploit,
    Preview,
    RungResult,
    Schedule,
    StudyInfo,
    TrialFailure,
    TrialInfo,
)
from headrace.client.transfer import Transferred
from headrace.spec import TrialPlan
from headrace.spec.code import Code

Json = dict[str, Any]


def _code(info: StudyInfo) -> Code | None:
    return info.spec.template.code if info.spec.template is not None else None


def study(info: StudyInfo) -> Json:
    """`headrace studies --json` prints a list of these, `headrace show STUDY --json` one."""
    counts = info.counts
    return {
        "name": info.name,
        "uid": info.uid,
        "project": info.project,
        "state": info.state.value,
        "detail": info.detail,
        "metric": info.spec.objective.metric,
        "goal": info.spec.objective.goal,
        "trials": {
            "total": counts.total,
            "pending": counts.pending,
            "running": counts.running,
            "paused": counts.paused,
            "resumed": counts.resumed,
            "terminated": counts.terminated,
            "completed": counts.completed,
            "stopped_early": counts.stopped_early,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "infeasible": counts.infeasible,
        },
        "best": trial(info.leader) if info.leader and not info.spec.further_objectives else None,
        "baseline": trial(info.baseline) if info.baseline else None,
        "objectives": [
            {"metric": one.metric, "goal": one.goal, "scope": one.scope, "k": one.k}
            for one in info.spec.objectives
        ],
        "constraints": [str(constraint) for constraint in info.spec.constraints],
        "front": [trial(one) for one in info.front],
        "failures": [failure(one) for one in info.failures],
        "waits_for": info.waits_for,
        "warm_results": info.warm_results,
        "bundle_sizes": [asdict(one) for one in info.bundle_sizes],
        "scale_choice": asdict(info.scale_choice) if info.scale_choice else None,
        "plan": plan(found) if (found := plans.plan_of(info.spec)) else None,
        "code": code.model_dump(exclude={"ship"}) if (code := _code(info)) else None,
        "rungs": [
            {
                "rung": r.rung,
                "milestone": r.milestone,
                "recorded": r.recorded,
                "promoted": r.promoted,
                "running": r.running,
            }
            for r in info.rungs
        ],
        "until": asdict(info.until) if info.until else None,
        "schedules": [
            {**schedule(one.schedule), "trials": one.trials, "first_trial": one.first_trial}
            for one in info.schedules
        ],
        "code_changed": list(info.code_changed),
        "on_code_change": info.spec.on_code_change,
        "steps_spent": info.steps_spent,
        "steps_run_all": info.steps_run_all,
        "max_trials": info.spec.max_trials,
        "max_steps": info.spec.max_steps,
        "created": info.created,
        "ended": info.ended,
        "started": info.started,
        "over_s": info.over_s,
        "unshown": info.unshown,
        "tags": list(info.tags),
        "note": info.note,
    }


def plan(found: TrialPlan) -> Json:
    """The plan for a study's trials, or for those of the study that follows it."""
    return {**found.model_dump(exclude={"files"}), "files": sorted(found.files)}


def failure(info: TrialFailure) -> Json:
    """A trial that failed; the list of a study holds the first 20."""
    return {"trial": info.trial, "detail": info.detail, "worker": info.worker}


def transferred(done: Transferred) -> Json:
    """What a study took over from another one, the best configuration first."""
    return {
        "study": done.source_study,
        "trials": [
            {
                "source": one.source,
                "trial": one.number,
                "best_value": one.best_value,
                "best_step": one.best_step,
                "score": one.score,
                "score_step": one.score_step,
                "state": one.state.value,
                "reason": one.reason.value if one.reason else None,
            }
            for one in done.trials
        ],
        "regret": done.regret,
        "regrets": list(done.regrets),
    }


def trial(info: TrialInfo) -> Json:
    """`headrace trials --json` prints a list of these, best first; `headrace show STUDY TRIAL --json` one.

    `params` are those of `score_step`, next to `score`. `last_params` are the parameters that a member of a
    population has used since its last copy; in any other study they equal `params`.
    """
    return {_TRIAL_KEYS.get(name, name): getattr(info, name) for name in _TRIAL_FIELDS} | {
        "state": info.state.value,
        "reason": info.reason.value if info.reason else None,
        "last_params": info.last_params,
        "rungs": [rung_result(r) for r in info.rungs],
        "lineage": [exploit(copied) for copied in info.lineage],
        "checkpoint": info.checkpoint.uri if info.checkpoint else None,
        "best_checkpoint": info.best_checkpoint.uri if info.best_checkpoint else None,
        "earlier_ends": [earlier_end(end) for end in info.earlier_ends],
        "counted_end": earlier_end(info.counted_end) if info.counted_end else None,
        "counted_metrics": info.counted_metrics,
        "counts_as": info.counts_as.value if info.counts_as else None,
        "schedules": [schedule(one) for one in info.schedules],
        "other_code": [asdict(one) for one in info.other_code],
        "result_of_other_code": info.result_of_other_code,
    }


_TRIAL_FIELDS = [
    part.name for part in fields(TrialInfo) if part.name not in ("attempt", "milestone", "log_tail")
]
"""Fields of a trial that `--json` does not show."""
_TRIAL_KEYS = {"number": "trial", "objective_values": "objectives"}
"""Keys that differ from the SDK's names."""


def earlier_end(end: EarlierEnd) -> Json:
    """A trial's result when it had ended, before it was allowed to continue."""
    return {
        **asdict(end),
        "reason": end.reason.value if end.reason else None,
        "checkpoint": end.checkpoint.uri if end.checkpoint else None,
    }


def schedule(one: Schedule) -> Json:
    """A learning-rate schedule that ends."""
    return {**asdict(one), "past_end": one.past_end.value}


def rung_result(result: RungResult) -> Json:
    """An entry of a trial at a rung."""
    return {
        "rung": result.rung,
        "milestone": result.milestone,
        "step": result.step,
        "value": result.value,
        "arrival": result.arrival,
        "promoted": result.promoted,
    }


def exploit(copied: Exploit) -> Json:
    """What a trial took over from another."""
    return {
        "rung": copied.rung,
        "step": copied.step,
        "donor": copied.donor,
        "donor_value": copied.donor_value,
        "params": copied.params,
        "previous_params": copied.previous_params,
    }


def event(entry: ev.Event) -> Json:
    """`headrace run --json` prints one per line, with `"type": "event"`; `headrace why --json` prints a list of
    them.
    """
    kind, detail = _detail(entry.detail)
    return {
        "cursor": entry.cursor,
        "time": entry.time,
        "trial": entry.trial,
        "kind": kind,
        "message": entry.message,
        **({kind: detail} if detail is not None else {}),
    }


def explanation(why: ev.Explanation) -> Json:
    """Why a decision was made."""
    return {
        "rule": why.rule,
        "bracket": why.bracket,
        "rung": why.rung,
        "milestone": why.milestone,
        "value": why.value,
        "rank": why.rank,
        "results": why.results,
        "kept": why.kept,
        "cutoff_value": why.cutoff_value,
        "sentence": why.sentence,
        "slot_goes_to": str(why.slot_goes_to) if why.slot_goes_to else None,
        "pause_price": asdict(why.pause_price) if why.pause_price else None,
        "expected_value": why.expected_value,
        "expected_spread": why.expected_spread,
        "probability": why.probability,
    }


def preview(plan: Preview) -> Json:
    """`headrace preview --json`. The rungs' steps and the baseline's add up to `steps`."""
    return {
        "trials": plan.trials,
        "rungs": [
            {
                "bracket": r.bracket,
                "rung": r.rung,
                "milestone": r.milestone,
                "trials": r.trials,
                "steps": r.steps,
            }
            for r in plan.rungs
        ],
        "baseline_steps": plan.baseline_steps,
        "steps": plan.steps,
        "steps_run_all": plan.steps_run_all,
        "slots": plan.slots,
        "wall_time_s": plan.wall_time_s,
        "slot_time_s": plan.slot_time_s,
        "samples": list(plan.samples),
        "sizes": [
            {"gpus": s.gpus, "gpu_milli": s.gpu_milli, "cpus": s.cpus, "trials": s.trials} for s in plan.sizes
        ],
        "bundle_groups": plan.bundle_groups,
        "companions": [asdict(one) for one in plan.companions],
        "all_steps": plan.all_steps,
        "all_wall_time_s": plan.all_wall_time_s,
        "all_slot_time_s": plan.all_slot_time_s,
        "warnings": list(plan.warnings),
    }


def worker(info: Worker) -> Json:
    """`headrace workers --json` prints a list of these."""
    return {
        "name": info.name,
        "connected": info.connected,
        "last_seen": info.last_seen,
        "version": info.version,
        "labels": info.labels,
        "trouble": info.trouble,
        "rejected": info.rejected,
        "reused": info.reused,
        "mps": info.mps,
        "avoided_by": list(info.avoided_by),
        "certificate_end": info.certificate_end,
        "draining": info.draining,
        "drained_since": info.drained_since,
        "cordoned": info.cordoned,
        "cordons": [
            {
                "device": cordon.device,
                "uuid": cordon.uuid,
                "reason": cordon.reason,
                "quarantined": cordon.quarantined,
                "since": cordon.since,
            }
            for cordon in info.cordons
        ],
        "suspended": info.suspended,
        "next_try": info.next_try,
        "slots": [
            {
                "index": s.index,
                "device": s.device,
                "memory_bytes": s.memory_bytes,
                "trial": str(s.trial) if s.trial else None,
                "elsewhere": s.elsewhere,
                "defect": s.defect,
                "uuid": s.uuid,
                "loads": loads_json(s),
            }
            for s in info.slots
        ],
    }


def _detail(detail: ev.EventDetail | None) -> tuple[str, Json | None]:
    match detail:
        case ev.TrialCreated():
            return "trial_created", {
                "params": detail.params,
                "bracket": detail.bracket,
                "baseline": detail.baseline,
                "proposal": asdict(detail.proposal) if detail.proposal else None,
            }
        case ev.TrialMoved():
            return "trial_moved", {
                "from": detail.from_state.value,
                "to": detail.to_state.value,
                "action": detail.action,
                "attempt": detail.attempt,
                "worker": detail.worker,
                "slots": detail.slots,
                "reason": detail.reason.value if detail.reason else None,
                "detail": detail.detail,
            }
        case ev.ReportRecorded():
            return "report_recorded", {
                "attempt": detail.attempt,
                "sequence": detail.sequence,
                "step": detail.step,
                "metrics": detail.metrics,
                "checkpoint": detail.checkpoint.uri if detail.checkpoint else None,
                "code": detail.code or None,
            }
        case ev.MetricsMissing():
            return "metrics_missing", asdict(detail)
        case ev.TrialWarned():
            return "trial_warned", asdict(detail)
        case ev.CodeChanged():
            return "code_changed", asdict(detail)
        case ev.RungRecorded():
            return "rung_recorded", {"bracket": detail.bracket, **rung_result(detail.result)}
        case ev.DecisionMade():
            return "decision_made", {
                "action": detail.action.value,
                "explanation": explanation(detail.explanation),
            }
        case ev.TrialExploited():
            return "trial_exploited", exploit(detail.exploit)
        case ev.TrialPlaced():
            return "trial_placed", asdict(detail)
        case ev.TrialPreempted():
            return "trial_preempted", asdict(detail)
        case ev.SlotsReserved():
            return "slots_reserved", asdict(detail)
        case ev.ProposalsEnded():
            return "proposals_ended", {"proposals": detail.proposals}
        case ev.ProposalFailed():
            return "proposal_failed", asdict(detail)
        case ev.StudyExtended():
            return "study_extended", asdict(detail)
        case ev.StudyMoved():
            return "study_moved", {
                "from": detail.from_state,
                "to": detail.to_state,
                "detail": detail.detail,
            }
        case None:  # its message says everything, or it comes from a newer server
            return "note", None
