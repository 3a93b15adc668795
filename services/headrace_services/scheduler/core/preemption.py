"""Trials that leave their slots before their end, because others need them or to get a larger grant.

A grant is asked to leave as a whole: each of its trials leaves at its next rung, or at its next report with a
checkpoint, and never without a checkpoint. It is better that others wait than that work is lost.
"""

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core import ephemeral_slots, events, quotas, rebalancing, sharing
from headrace_services.scheduler.core.inputs import Preemption, ReportArrived
from headrace_services.scheduler.core.placement import Waiting, fit, request_of, spare_slots, with_parts
from headrace_services.scheduler.core.records import Lease, Trial
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import Leaving


def at_report(state: CycleState, lease: Lease, report: ReportArrived) -> str | None:
    """Say why a trial leaves now, before its rung: a study with higher priority needs its slots. None if it may
    stay."""
    asked = _asked(state, lease)
    if asked is None or not asked.at_report or report.checkpoint is None:
        return None
    return _preempted(state, lease, asked)


def at_rung(state: CycleState, lease: Lease, trial: Trial, target: int) -> str | None:
    """Say why a trial that continues to `target` gives its slots back first; None if it keeps them."""
    budget = lease.budget or state.study.spec.budgets[0]
    if target > budget:
        return f"this attempt was started with a full budget of {budget} steps, so a new attempt continues to {target}"
    if trial.checkpoint is None or not lease.slots:
        return None
    asked = _asked(state, lease)
    if asked is not None:
        return _preempted(state, lease, asked)
    if lease.owner_stage:
        return ephemeral_slots.leaves(state, lease, trial, target)
    spreads = rebalancing.leaves(state, lease)
    if spreads is not None:
        return spreads
    wanted = request_of(state.study.spec, trial)
    spare = spare_slots(state.study.spec, target)
    part = (len(lease.slots), lease.milli)
    held = len(lease.slots) if lease.milli == WHOLE else 0
    least = max(wanted.whole_slots, held)
    if spare > least and state.cluster.nothing_waits:
        slots = _with_spare(state, lease, trial, target, least)
        if slots is not None:
            more = slots - held
            are = "slot is" if more == 1 else "slots are"
            return f"{more} spare {are} free: it continues with {slots} to {target} steps"
    has_spare = wanted.whole_slots < held <= spare
    if part != wanted.part and not has_spare:
        return f"its grant changes from {_told(*part)} to {_told(*wanted.part)} slots at step {trial.step}"
    return None


def _with_spare(state: CycleState, lease: Lease, trial: Trial, target: int, least: int) -> int | None:
    """Return how many whole slots a trial can have with spare ones, more than `least`; None if there are none."""
    request = sharing.waiting_for(state, trial, target).request
    devices = with_parts(state.free, state.slots[lease.id])
    most = quotas.most_slots(state, held_milli=len(lease.slots) * lease.milli)
    for slots in range(int(min(spare_slots(state.study.spec, target), len(devices), most)), least, -1):
        job = Waiting(key=(state.study.id, trial.number), request=request.grown(slots))
        if fit(devices, job, state.cluster.reservations(state.study.now_s)) is not None:
            return slots
    return None


def _told(slots: int, milli: int) -> str:
    return f"{slots * milli / WHOLE:g}"


def _asked(state: CycleState, lease: Lease) -> Leaving | None:
    if state.study.closing is not None:
        return None  # they end (`core.closing`)
    return state.study.leaving.get(lease.grant.id) if lease.grant else None


def _preempted(state: CycleState, lease: Lease, asked: Leaving) -> str:
    asking = state.cluster.others.get(asked.for_study_id) if asked.for_study_id is not None else None
    named = asking.name if asking is not None and asking.project == state.study.project else ""
    state.emit(events.trial_preempted(lease.number, named, asked.why))
    return asked.why


def preemptions(state: CycleState) -> list[Preemption]:
    """The messages for workers about trials, of any study, that are to leave at their next report."""
    running = {run.grant_id: run for run in state.cluster.running}
    return [
        Preemption(worker_id=run.worker_id, lease=lease, reason=asked.why)
        for grant_id, asked in state.changes.asks.items()
        if asked.at_report and (run := running.get(grant_id)) is not None
        for lease in run.leases
    ]
