"""Slots for a trial, among the trials of the study and among studies.

Before a study takes free slots it looks who goes before it (`placement.shares`): what those could use is left to
them, and they are kicked. What fits nowhere has slots kept for it (`placement.reserving`), and who runs there is
asked to leave. A trial that was asked leaves at its next rung, or at its next report with a checkpoint, and never
without a checkpoint: others wait rather than work be lost.
"""

from msgspec.structs import replace

from headrace_services.scheduler import events
from headrace_services.scheduler.arrivals import ReportArrived
from headrace_services.scheduler.records import Lease, Reserved, Slot, Standing, Trial
from headrace_services.scheduler.step.placement import (
    BestFit,
    Cluster,
    Placement,
    Placer,
    Request,
    Reservation,
    Running,
    Waiting,
    can_ever_serve,
    fit,
    request_at,
    spare_slots,
    take,
)
from headrace_services.scheduler.step.placement.shares import Share, ahead_of, joined
from headrace_services.scheduler.step.placement.speeds import grant_kind, models_of, preference, run_s, step_s
from headrace_services.scheduler.step.state import StepState

PLACER: Placer = BestFit()
PATIENCE_S = 10.0
"""How long free slots are left to a study that does not come for them."""


def join(state: StepState) -> None:
    """A study that was idle and has something to run again earns no credit for the time between."""
    share = own_share(state)
    if share.idle and state.room.others:
        usage = joined(share, state.room.others, state.room.totals, state.study.now_s)
        state.stand(usage=usage)


def find(state: StepState, trial: Trial, milestone: int) -> Placement | None:
    """Return the slots for a trial, once those that go before have been left theirs; None where it has to wait."""
    waiting = waiting_for(state, trial, milestone)
    own = _own_reservation(state, waiting)
    kept = [*_others_reservations(state), *([own] if own else [])]
    _leave_to_others(state, kept)
    devices = _devices(state)
    placement = _spare(state, trial, waiting, devices, kept, milestone) or fit(devices, waiting, kept)
    if placement is None and state.room.blocked is None:
        state.room.blocked = waiting
    if placement is not None and own is not None and own.key == waiting.key:
        state.give_up_reservation()
    return placement


def waiting_for(state: StepState, trial: Trial, milestone: int) -> Waiting:
    """Return a trial as the placer sees it: what it takes, and for how long by measured times."""
    request = request_at(state.study.spec, trial.step)
    models = models_of(state.free)
    study = state.study.standing.speeds
    steps = max(1, milestone - trial.step)
    own = run_s(models, request, steps, study, trial.speeds)
    others = run_s(models, request, steps, study, {}) if len(models) > 1 and len(state.queue) > 1 else {}
    return Waiting(
        key=(state.study.id, trial.number),
        request=request,
        run_s=own,
        preference=preference(own, others, models),
        priority=state.study.spec.priority,
        group=state.study.id,
    )


def any_trial(state: StepState, request: Request) -> Waiting:
    """Return some trial of the study that takes so much."""
    key = (state.study.id, -1)
    return Waiting(key=key, request=request, priority=state.study.spec.priority, group=state.study.id)


def keep(state: StepState) -> None:
    """Have slots kept for the trial that fits nowhere, and ask those who run there to leave.

    `room.devices` and `room.running` are loaded.
    """
    blocked = state.room.blocked
    if blocked is None or state.room.devices is None:
        return
    mine = _own_reservation(state, blocked)
    if mine is not None and mine.key != blocked.key:
        return  # another trial, of another size, has slots kept for it; one at a time
    reservations = [*_others_reservations(state), *([mine] if mine else [])]
    cluster = Cluster(
        devices=_without(state.room.devices, state.room.withheld),
        running=tuple(run for run in state.room.running if run.lease_id not in _over(state)),
        reservations=tuple(reservations),
        now_s=state.study.now_s,
    )
    if mine is None and not _is_next(state):
        return
    plan = PLACER.plan(cluster, [blocked])
    kept = next((r for r in plan.reservations if r.key == blocked.key), None)
    if kept is None:
        if state.study.standing.reserved is not None:
            state.give_up_reservation()
        if can_ever_serve(state.room.devices, blocked.request):
            _ask_of_the_overdrawn(state, cluster.running)
        return
    if kept == mine:
        return
    ready_s = None if kept.ready_in_s is None else state.study.now_s + kept.ready_in_s
    reserved = Reserved(
        number=blocked.key[1],
        worker_id=kept.worker_id,
        slots=kept.slots,
        since_s=kept.since_s,
        ready_s=ready_s,
    )
    state.stand(reserved=reserved)
    names = {slot.worker_id: slot.worker_name for slot in state.room.devices}
    state.emit(events.slots_reserved(blocked.key[1], names[kept.worker_id], kept.slots, kept.ready_in_s))
    for ask in plan.asks:
        state.changes.asks[ask.lease_id] = ask.at_report


def just_granted(state: StepState) -> tuple[Running, ...]:
    """The trials that this step has placed: they are not in the rows yet."""
    found = []
    for lease in state.changes.granted.values():
        if lease.live and lease.worker_id is not None:
            kind = grant_kind(lease.model, len(lease.slots), lease.milli)
            trial = state.trials[lease.number]
            per_step = step_s(kind, state.study.standing.speeds, trial.speeds)
            steps = (trial.milestone or lease.step) - lease.step
            running = Running(
                key=(state.study.id, lease.number),
                lease_id=lease.id,
                worker_id=lease.worker_id,
                slots=lease.slots,
                milli=lease.milli,
                priority=state.study.spec.priority,
                leaves_in_s=None if per_step is None else per_step * steps,
            )
            found.append(running)
    return tuple(found)


def may_need_keeping(state: StepState) -> bool:
    """Whether it may take more than one trial's end to make room for the one that waits.

    Not while its slots are kept already, nor where all trials of the only study are of one size.
    """
    blocked, spec = state.room.blocked, state.study.spec
    if blocked is None or spec.template is None:
        return False
    sizes = {row.slots for row in spec.elastic.grants} | {spec.resources.slots} if spec.elastic else set()
    return bool(state.room.others) or len(sizes) > 1


def settle_standing(state: StepState) -> None:
    """After placing: note for other studies what this one waits for, and give up what it has no use for any more."""
    blocked = state.room.blocked if state.active else None
    before = state.study.standing
    count = 0
    if blocked is not None:
        spec = state.study.spec
        count = len(state.queue) + max(0, state.cache.sampled_limit - state.study.sampled)
        if spec.max_parallel:
            count = min(count, spec.max_parallel - state.live)
        count = max(1, count)
    state.stand(
        wants_slots=blocked.request.slots if blocked else 0,
        wants_count=count,
        quantum_s=_quantum_s(state),
        looked_s=state.study.now_s if blocked else 0.0,
    )
    if before.reserved is not None and blocked is None:
        state.give_up_reservation()


def own_share(state: StepState) -> Share:
    """Return the study as others see it, as of now."""
    return Share.of(state.study)


# --- trials that leave ---------------------------------------------------------------------------------


def leaves_at_report(state: StepState, lease: Lease, arrival: ReportArrived) -> str | None:
    """Say why a trial leaves now, before its rung: others of more priority need its slots; None if it may stay."""
    asked = state.study.leaving.get(lease.id)
    if asked is None or not asked.at_report or arrival.checkpoint is None:
        return None
    return _preempted(state, lease)


def leaves_at_rung(state: StepState, lease: Lease, trial: Trial, target: int) -> str | None:
    """Say why a trial that goes on to `target` gives its slots back first; None if it goes on where it is."""
    if trial.checkpoint is None or not lease.slots:
        return None
    if lease.id in state.study.leaving:
        return _preempted(state, lease)
    wanted = request_at(state.study.spec, trial.step).slots
    spare = spare_slots(state.study.spec, target)
    if spare > max(wanted, len(lease.slots)) and state.room.nothing_waits:
        own = state.slots[lease.id]
        larger = replace(
            waiting_for(state, trial, target).request, slots=min(spare, len(lease.slots) + len(state.free))
        )
        for slots in range(larger.slots, len(lease.slots), -1):
            job = Waiting(key=(state.study.id, trial.number), request=replace(larger, slots=slots))
            if fit([*state.free, *own], job, _others_reservations(state)) is not None:
                return f"{slots - len(lease.slots)} spare slots are free: it goes on with {slots} to {target} steps"
        return None
    if wanted != len(lease.slots) and spare < len(lease.slots):
        return f"its grant changes from {len(lease.slots)} to {wanted} slots at step {trial.step}"
    return None


def _preempted(state: StepState, lease: Lease) -> str:
    asked = state.study.leaving[lease.id]
    state.emit(events.trial_preempted(lease.number, state.room.names.get(asked.for_study_id, ""), asked.why))
    return asked.why


# --- others ----------------------------------------------------------------------------------------------


def _leave_to_others(state: StepState, kept: list[Reservation]) -> None:
    """Set aside what studies that go before this one could use of the free slots."""
    room = state.room
    if not room.others:
        return
    now_s = state.study.now_s
    hopeless = _silent(state)
    while True:
        before = [
            other
            for other in ahead_of(own_share(state), room.others, room.totals, now_s)
            if other.study_id not in hopeless
        ]
        if not before:
            return
        first = before[0]
        assert first.wants is not None
        number = first.reserved.number if first.reserved else -1
        job = Waiting(
            key=(first.study_id, number),
            request=first.wants,
            priority=first.priority,
            group=first.study_id,
        )
        placement = fit(_devices(state), job, kept)
        if placement is None:
            hopeless.add(first.study_id)
            continue
        state.cache.left_to.setdefault(first.study_id, now_s)
        room.withheld.append(placement)
        room.kicks.add(first.study_id)
        room.others = tuple(
            other.holding(first.wants) if other.study_id == first.study_id else other for other in room.others
        )


def _is_next(state: StepState) -> bool:
    """Whether nobody goes before the study: only then are slots kept for it anew, and others asked to leave them."""
    room = state.room
    return not ahead_of(own_share(state), room.others, room.totals, state.study.now_s)


def _silent(state: StepState) -> set[int]:
    """Studies that slots were left to and that have not looked at them since: whatever ails them, slots do not idle."""
    left_to = state.cache.left_to
    for other in state.room.others:
        since_s = left_to.get(other.study_id)
        if since_s is not None and (other.wants is None or other.looked_s > since_s):
            del left_to[other.study_id]
    return {who for who, since_s in left_to.items() if state.study.now_s - since_s > PATIENCE_S}


def _ask_of_the_overdrawn(state: StepState, running: tuple[Running, ...]) -> None:
    """The trial waits for its turn only. Where a study has more than its share, one trial of it leaves at its rung."""
    room, own = state.room, own_share(state)
    if not room.others or any(run.asked for run in running):
        return
    behind = [
        other
        for other in room.others
        if other.priority == own.priority
        and own.study_id
        in {share.study_id for share in ahead_of(_with_held(other), (own,), room.totals, state.study.now_s)}
    ]
    over = {other.study_id for other in behind}
    asked = sorted(
        (run for run in running if run.key[0] in over and run.leaves_in_s is not None),
        key=lambda run: (run.leaves_in_s, run.lease_id),
    )
    if asked:
        state.changes.asks[asked[0].lease_id] = False


def _with_held(share: Share) -> Share:
    """A study one grant poorer: it must be ahead by more than what it would give up."""
    usage = share.usage
    gpu, milli = usage.gpu_milli > 0, 1000
    return replace(
        share, usage=usage.hold(gpu, -min(milli, usage.gpu_milli if gpu else usage.cpu_slots * 1000))
    )


# --- slots -----------------------------------------------------------------------------------------------


def _spare(
    state: StepState,
    trial: Trial,
    waiting: Waiting,
    devices: tuple[Slot, ...],
    kept: list[Reservation],
    milestone: int,
) -> Placement | None:
    """Spare slots for a finalist, while nothing else waits for them."""
    most = spare_slots(state.study.spec, milestone)
    if most <= waiting.request.slots or not _nothing_else_waits(state, trial):
        return None
    for slots in range(min(most, len(devices)), waiting.request.slots, -1):
        larger = replace(waiting, request=replace(waiting.request, slots=slots))
        placement = fit(devices, larger, kept)
        if placement is not None:
            return replace(placement, rule="spare")
    return None


def _nothing_else_waits(state: StepState, trial: Trial) -> bool:
    if any(other.wants is not None for other in state.room.others):
        return False
    if any(number != trial.number for number in state.queue) or state.more:
        return False
    promotion = state.next_promotion()
    return promotion is None or promotion.trial == trial.number


def _devices(state: StepState) -> tuple[Slot, ...]:
    return _without(tuple(state.free), state.room.withheld)


def _without(devices: tuple[Slot, ...], withheld: list[Placement]) -> tuple[Slot, ...]:
    for placement in withheld:
        devices = take(devices, placement)
    return devices


def _over(state: StepState) -> set[str]:
    return {lease.id for lease in state.changes.updated.values() if not lease.live}


def _others_reservations(state: StepState) -> list[Reservation]:
    return state.room.reservations(state.study.now_s)


def _own_reservation(state: StepState, waiting: Waiting) -> Reservation | None:
    """The study's reservation is that of its first trial of the size, whichever that is now."""
    own = own_share(state).reservation(state.study.now_s)
    if own is None or len(own.slots) != waiting.request.slots:
        return own
    return replace(own, key=waiting.key)


def _quantum_s(state: StepState) -> float:
    """About how long a grant is held: the mean rung, in seconds by the mean speed."""
    standing: Standing = state.study.standing
    seconds = sum(took for _, took in standing.speeds.values())
    steps = sum(count for count, _ in standing.speeds.values())
    if not steps:
        return standing.quantum_s
    spec = state.study.spec
    rungs = len(state.cache.policy.ladder(0))
    return max(1e-3, seconds / steps * spec.max_steps / rungs)
