"""One step of a study over the rows in memory: the same order of calls as `step/transaction` makes over Postgres.

`tests/simulator/test_simulator_production.py` runs both side by side and expects the same event log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.spec import StudySpec, TrialTemplate
from headrace_services.scheduler.arrivals import (
    Arrival,
    ExitedArrived,
    LeaseExpired,
    Order,
    Outcome,
    ReportArrived,
    RestoredArrived,
    Vacation,
)
from headrace_services.scheduler.records import Lease, Leaving, Slot
from headrace_services.scheduler.results import Result
from headrace_services.scheduler.simulator.cluster_rows import ClusterRows, Key
from headrace_services.scheduler.simulator.rows import StudyRows
from headrace_services.scheduler.step import cluster_rows, core, placing, sharing
from headrace_services.scheduler.step.placement import Request, Running
from headrace_services.scheduler.step.placement.speeds import grant_kind, step_s
from headrace_services.scheduler.step.state import StepState

OFFERED = 64
"""How many free slots a step looks at, as in `step/transaction`."""

Studies = Mapping[int, StudyRows]
"""All studies on the cluster by their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What a step answered, and whom it tells what."""

    outcomes: tuple[Outcome | None, ...]
    orders: tuple[Order, ...]
    slots_left: bool
    """Whether it left slots that any other study may use."""
    kicks: tuple[int, ...]
    """The studies that it left slots to."""
    again: bool
    """Whether there was more to place than one step places."""


def step(
    rows: StudyRows, studies: Studies, cluster: ClusterRows, arrivals: Sequence[Arrival], now_s: float
) -> Stepped:
    """Take arrivals in, place what can be placed, and write the outcome to the rows."""
    study = rows.at(now_s, cluster)
    state = StepState(study, rows.cache)
    _load(state, rows, cluster, arrivals)
    offered: set[Key] = set()
    _look_for_spare(state, rows, studies, cluster, offered)
    outcomes = tuple(core.apply(state, arrival) for arrival in arrivals)
    slots_left = again = False
    if state.wants_placement and not state.study.state.ended:
        slots_left, again = _place(state, rows, studies, cluster, offered, len(arrivals))
    if state.study.state.ended and not study.state.ended:
        state.load(trials=rows.unfinished(), leases=rows.leases.values())
        for lease in rows.leases.values():
            state.slots.setdefault(lease.id, cluster.held(lease))
        core.finish(state, state.trials)
        slots_left = True
    rows.write(state, cluster)
    _tell_others(state, studies, cluster)
    rows.cache.cursor = state.study.cursor
    return Stepped(
        outcomes=outcomes,
        orders=tuple(state.orders),
        slots_left=slots_left,
        kicks=tuple(sorted(state.room.kicks)),
        again=again,
    )


def _load(state: StepState, rows: StudyRows, cluster: ClusterRows, arrivals: Sequence[Arrival]) -> None:
    for arrival in arrivals:
        match arrival:
            case ReportArrived() | RestoredArrived() | ExitedArrived() | LeaseExpired():
                lease = rows.leases.get(arrival.lease_id)
                if lease is not None:
                    state.load(trials=[rows.trials[lease.number]], leases=[lease])
                    state.slots[lease.id] = cluster.held(lease)
            case _:
                pass
    if state.cache.policy.new_trials_first:
        state.unstarted = rows.unstarted


def _place(
    state: StepState,
    rows: StudyRows,
    studies: Studies,
    cluster: ClusterRows,
    seen: set[Key],
    arrivals: int,
) -> tuple[bool, bool]:
    state.live += len(rows.leases)
    freed = list(state.free)
    _offer(state, studies, cluster, OFFERED, seen)
    sharing.join(state)
    offered = len(state.free)
    state.load_queue(rows.runnable(offered + placing.LOOKAHEAD + arrivals + 1))
    _place_all(state, rows, pass_over=False)
    _keep_slots(state, studies, cluster)
    _place_all(state, rows, pass_over=True)
    if not state.live and not state.queue:
        state.held += sum(trial.held for trial in rows.unfinished())
    if placing.is_complete(state):
        state.results = state.own_results()
        for number, trial in rows.trials.items():
            if number not in state.trials:
                state.results.add(Result.of(trial))
    placing.settle(state)
    sharing.settle_standing(state)
    used_up = bool(state.changes.granted) and not cluster_rows.more_fits(state)
    return cluster_rows.left_over(state, freed), offered >= OFFERED and used_up


def _place_all(state: StepState, rows: StudyRows, *, pass_over: bool) -> None:
    if pass_over and state.room.blocked is None:
        return
    while (number := placing.place(state, pass_over=pass_over)) is not None:
        state.load(trials=[rows.trials[number]])


# --- the cluster beyond the study, as in `step/cluster_rows` -------------------------------------------------


def _offer(state: StepState, studies: Studies, cluster: ClusterRows, limit: int, offered: set[Key]) -> None:
    spec = state.study.spec
    base = Request.of(spec.resources)
    found = cluster.free_slots(base, limit)
    state.offer(_new(found, offered))
    if spec.elastic is not None and len(found) >= limit:
        for slots in sorted({row.slots for row in spec.elastic.grants if row.slots > base.slots}):
            state.offer(_new(cluster.free_slots(Request.of(spec.resources, slots), limit), offered))
    others = [
        other for key, other in studies.items() if key != state.study.id and not other.study.state.ended
    ]
    if others:
        state.room.others = tuple(other.share() for other in others)
        state.room.names = {other.study.id: other.study.name for other in others}
        state.room.totals = cluster.totals()


def _new(found: list[Slot], offered: set[Key]) -> list[Slot]:
    """Those that this step was not offered yet, as the rows know nothing of what it did with them."""
    new = [slot for slot in found if (slot.worker_id, slot.index) not in offered]
    offered.update((slot.worker_id, slot.index) for slot in new)
    return new


def _look_for_spare(
    state: StepState, rows: StudyRows, studies: Studies, cluster: ClusterRows, offered: set[Key]
) -> None:
    elastic = state.study.spec.elastic
    if elastic is None or not elastic.spare or not state.leases:
        return
    _offer(state, studies, cluster, elastic.spare, offered)
    state.room.nothing_waits = not rows.pending and all(share.wants is None for share in state.room.others)


def _keep_slots(state: StepState, studies: Studies, cluster: ClusterRows) -> None:
    """Without the pause between two looks that a replica makes: looking costs no virtual time."""
    room = state.room
    if room.blocked is None or not sharing.may_need_keeping(state):
        return
    devices = cluster.devices(room.blocked.request)
    free = {(slot.worker_id, slot.index): slot for slot in state.free}
    occupied = state.changes.occupied
    room.devices = tuple(
        free.get((slot.worker_id, slot.index))
        or (slot.less(slot.free_milli, 0) if (slot.worker_id, slot.index) in occupied else slot)
        for slot in devices
    )
    running = (
        _running(other, lease, cluster) for other in studies.values() for lease in other.leases.values()
    )
    room.running = (*running, *sharing.just_granted(state))
    sharing.keep(state)


def _running(rows: StudyRows, lease: Lease, cluster: ClusterRows) -> Running:
    trial = rows.trials[lease.number]
    kind = grant_kind(lease.model, len(lease.slots), lease.milli)
    per_step = step_s(kind, rows.study.standing.speeds, trial.speeds)
    assert lease.worker_id is not None
    return Running(
        key=(lease.study_id, lease.number),
        lease_id=lease.id,
        worker_id=lease.worker_id,
        slots=lease.slots,
        milli=lease.milli,
        priority=rows.study.spec.priority,
        leaves_in_s=(
            None if per_step is None or trial.milestone is None else (trial.milestone - lease.step) * per_step
        ),
        asked=lease.id in cluster.leaving,
    )


def _tell_others(state: StepState, studies: Studies, cluster: ClusterRows) -> None:
    study, changes = state.study, state.changes
    if changes.withdraw_asks or (study.state.ended and study.standing.reserved):
        cluster.withdraw_asks(study.id)
    why = f"study '{study.name}' needs its slots"
    live = (
        {lease.id: lease for other in studies.values() for lease in other.leases.values()}
        if changes.asks
        else {}
    )
    for lease_id, at_report in changes.asks.items():
        lease = live.get(lease_id)
        if lease is None or lease.worker_id is None:
            continue
        cluster.ask(lease, Leaving(for_study_id=study.id, at_report=at_report, why=why))
        if at_report:
            state.orders.append(Vacation(worker_id=lease.worker_id, lease=lease, reason=why))


_PROGRAM = TrialTemplate(callable="simulated:trial", working_dir="/")


def runs_on_slots(spec: StudySpec) -> StudySpec:
    """The spec of a study as workers would run it: an ask/tell study is given a program, whose clients are slots."""
    if spec.template is not None:
        return spec
    return spec.model_copy(update={"template": _PROGRAM})
