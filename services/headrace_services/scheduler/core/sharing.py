"""Slots for a trial, among the trials of the study and among studies.

Before a study takes free slots it checks which studies go first (`placement.shares`). What those could use is left
to them, and they are woken. A trial that fits nowhere gets a reservation (`placement.reserving`), and the trials
that run on the reserved slots are asked to leave (`preemption`).
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec.structs import replace

from headrace_services.scheduler.core import events, failed_starts, quotas
from headrace_services.scheduler.core.needs import Deciding, NextInLine, ask
from headrace_services.scheduler.core.placement import (
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
    request_of,
    requests_of,
    spare_slots,
    suits,
    without,
)
from headrace_services.scheduler.core.placement.shares import (
    BEHIND_ALL,
    Claim,
    Share,
    claim,
    ephemeral_claim,
    joined,
)
from headrace_services.scheduler.core.placement.speeds import (
    all_kinds,
    grant_kind,
    guessed,
    kinds_of,
    preference,
    run_s,
    step_s,
)
from headrace_services.scheduler.core.precedence import leave_to, own_claim, own_share, silent
from headrace_services.scheduler.core.records import Lease, Slot, Trial
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import Reserved, Standing

PLACER: Placer = BestFit()
NEXT_IN_LINE = 256
"""How many further waiting studies a cycle reads at once."""


def join(state: CycleState) -> None:
    """Account for a study that was idle and has something to run again: it earns no credit for the time between.
    The same holds for a study whose project has a larger quota than before."""
    share, cluster = own_share(state), state.cluster
    if (share.idle or quotas.has_grown(state)) and cluster.crowded:
        state.stand(usage=joined(share, cluster.least_s, cluster.totals, state.study.now_s))


def find(state: CycleState, trial: Trial, milestone: int) -> Deciding[Placement | None]:
    """Return the slots for a trial, once the studies that go first have been left theirs; None if it has to wait."""
    waiting = waiting_for(state, trial, milestone)
    own = _own_reservation(state, waiting)
    kept = [*_others_reservations(state), *([own] if own else [])]
    yield from _leave_to_others(state, kept)
    devices = _devices(state)
    placement = _spare(state, trial, waiting, devices, kept, milestone) or fit(devices, waiting, kept)
    if placement is None and state.cluster.blocked is None:
        state.cluster.blocked = waiting
    if placement is not None and own is not None and own.key == waiting.key:
        state.give_up_reservation()
    return placement


def waiting_for(state: CycleState, trial: Trial, milestone: int) -> Waiting:
    """Return a trial as the placer sees it: what it takes, and for how long according to measured times."""
    avoided = failed_starts.avoided_by(state.study, trial.number)
    request = request_of(state.study.spec, trial, avoided)
    free = [slot for slot in state.free if not slot.owner]  # no speed is learned on ephemeral slots
    kinds = kinds_of(free, request)
    known = kinds if request.slots == 1 else kinds | all_kinds(free)
    study = state.study.standing.speeds
    steps = max(1, milestone - trial.position)
    own = run_s(known, request, steps, study, trial.speeds)
    others = run_s(known, request, steps, study, {}) if len(kinds) > 1 and len(state.queue) > 1 else {}
    liked = preference(guessed(own, free), guessed(others, free), kinds)
    return Waiting(
        key=(state.study.id, trial.number),
        request=request,
        run_s=own,
        preference=liked,
        shunned=trial.unread.workers if trial.unread else (),
        priority=state.study.spec.priority,
        group=state.study.id,
    )


def any_trial(state: CycleState, request: Request) -> Waiting:
    """Return some trial of the study that takes this much."""
    key = (state.study.id, -1)
    return Waiting(key=key, request=request, priority=state.study.spec.priority, group=state.study.id)


def keep(state: CycleState) -> None:
    """Reserve slots for the trial that fits nowhere, and ask the trials that run there to leave.

    `state.cluster.devices` and `state.cluster.running` are loaded.
    """
    blocked = state.cluster.blocked
    if blocked is None or state.cluster.devices is None:
        return
    mine = _own_reservation(state, blocked)
    if mine is not None and mine.key != blocked.key:
        return  # another trial, of another size, has a reservation; a study has one at a time
    reservations = [*_others_reservations(state), *([mine] if mine else [])]
    cluster = Cluster(
        devices=_without(state.cluster.devices, state.cluster.withheld),
        running=tuple(run for run in state.cluster.running if run.grant_id not in state.changes.ended_grants),
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
        if can_ever_serve(state.cluster.devices, blocked.request):
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
        milli=blocked.request.milli,
        cores=blocked.request.cores,
    )
    state.stand(reserved=reserved)
    names = {slot.worker_id: slot.worker_name for slot in state.cluster.devices}
    state.emit(events.slots_reserved(blocked.key[1], names[kept.worker_id], kept.slots, kept.ready_in_s))
    projects = {run.grant_id: run.project for run in cluster.running}
    for asked in plan.asks:
        state.ask_to_leave(asked.grant_id, project=projects[asked.grant_id], at_report=asked.at_report)


def just_granted(state: CycleState) -> tuple[Running, ...]:
    """The grants that this cycle has started, and their trials: they are not in the rows yet."""
    found: dict[str, Running] = {}
    for lease in state.changes.granted.values():
        if not lease.live or lease.worker_id is None or lease.grant is None:
            continue
        if lease.grant.id not in state.changes.grants or lease.owner_stage:
            continue  # it joined a bundle, or keeps no one off
        running = Running(
            key=(state.study.id, lease.number),
            grant_id=lease.grant.id,
            leases=(lease.name,),
            worker_id=lease.worker_id,
            slots=lease.slots,
            milli=lease.milli,
            priority=state.study.spec.priority,
            leaves_in_s=_leaves_in_s(state, lease),
            project=state.study.project,
        )
        first = found.get(lease.grant.id)
        found[lease.grant.id] = running if first is None else first.beside(running)
    return tuple(found.values())


def _leaves_in_s(state: CycleState, lease: Lease) -> float | None:
    trial = state.trials[lease.number]
    kind = grant_kind(lease.model, len(lease.slots), lease.milli)
    per_step = step_s(kind, state.study.standing.speeds, trial.speeds)
    return None if per_step is None else per_step * ((trial.milestone or lease.step) - lease.step)


def may_need_keeping(state: CycleState) -> bool:
    """Whether the waiting trial has a reservation, or may need more than one trial's end to make room for it.

    This is not the case if all trials of the only study are of one size, nor while a known study goes before this
    one.
    """
    blocked, spec = state.cluster.blocked, state.study.spec
    if blocked is None or spec.template is None:
        return False
    sizes = {blocked.request.size, *(request.size for request in requests_of(spec))}
    if not state.cluster.crowded and len(sizes) == 1:
        return False
    return state.study.standing.reserved is not None or _is_next(state)


def settle_standing(state: CycleState) -> None:
    """After placing, record for other studies what this one waits for, and cancel what it no longer needs."""
    blocked = state.cluster.blocked if state.active else None
    held_off = state.cluster.held_off if state.active else 0
    before = state.study.standing
    waits = blocked is not None or held_off > 0
    count = _startable(state) if waits else 0
    state.stand(
        wants_slots=blocked.request.slots if blocked else 0,
        wants_milli=blocked.request.milli if blocked else None,
        wants_cores=blocked.request.cores if blocked else None,
        wants_bubbles=state.cluster.wanted_ephemeral_bytes if blocked else None,
        wants_count=count,
        held_off=held_off,
        quota=state.cluster.quota.slots if held_off and state.cluster.quota is not None else 0,
        quantum_s=_quantum_s(state),
        looked_s=state.study.now_s if waits else 0.0,
    )
    if before.reserved is not None and blocked is None:
        state.give_up_reservation()
    quotas.hand_on(state)


def _startable(state: CycleState) -> int:
    """How many trials of the study could start if there were slots for all; at least the waiting one."""
    spec = state.study.spec
    count = len(state.queue) + max(0, state.sampled_limit - state.study.sampled)
    if spec.max_parallel:
        count = min(count, spec.max_parallel - state.live)
    return max(1, count)


# --- others ----------------------------------------------------------------------------------------------


def hand_on(state: CycleState) -> Deciding[None]:
    """Leave the free slots that the study does not need to the waiting studies, in their order.

    Only these are woken. Otherwise all waiting studies would check each slot that becomes free.
    """
    own = own_share(state).reservation(state.study.now_s)
    kept = [*_others_reservations(state), *([own] if own else [])]
    yield from _leave(state, kept, BEHIND_ALL)


def _leave_to_others(state: CycleState, kept: list[Reservation]) -> Deciding[None]:
    """Withhold the free slots that studies before this one could use."""
    yield from _leave(state, kept, own_claim(state))


def _leave(state: CycleState, kept: list[Reservation], own: Claim) -> Deciding[None]:
    """Withhold the free slots that studies before a claim could use."""
    cluster, now_s = state.cluster, state.study.now_s
    if not cluster.crowded:
        return
    hopeless, useless = silent(state), list[Share]()
    devices, line = _devices(state), cluster.ahead_of(own, now_s)  # a heap: it is sorted
    while devices:
        if not line:
            if not cluster.others_may_go_before(own):
                return
            yield from _look_further(state, unlike=useless)
            line = cluster.ahead_of(own, now_s)
            continue
        other = heappop(line)[1]
        if other.study_id in hopeless or any(other.like(one) for one in useless):
            continue
        found = fit(devices, next_of(other), kept)
        if found is None:
            hopeless.add(other.study_id)
            if other.reserved is None:
                useless.append(other)
            continue
        leave_to(state, other.study_id)
        cluster.withheld.append(found)
        devices = without(devices, found)
        assert other.wants is not None
        served = cluster.others[other.study_id] = other.holding(other.wants, now_s)
        place = claim(served, cluster.totals, now_s)
        if cluster.is_ahead(served, place, own):
            heappush(line, (place, served))


def _look_further(state: CycleState, *, unlike: Iterable[Share]) -> Deciding[None]:
    """Read the next studies that wait for slots, without those that ask for the same as a study that found
    nothing."""
    cluster = state.cluster
    assert cluster.known_to is not None
    line = yield from ask(
        NextInLine(
            after=cluster.known_to,
            now_s=state.study.now_s,
            waiting=NEXT_IN_LINE,
            unlike=frozenset(share.study_id for share in unlike),
        )
    )
    cluster.extend(line)


def first_for(slot: Slot, others: Iterable[Share], own: Share, now_s: float) -> Share | None:
    """Return the study that an ephemeral slot is left to, which waits for one like it and goes before this one."""
    waiting = [
        other for other in others if other.wanted > 0 and other.wants is not None and suits(slot, other.wants)
    ]
    first = min(waiting, key=lambda other: ephemeral_claim(other, now_s), default=None)
    return None if first is None or ephemeral_claim(own, now_s) < ephemeral_claim(first, now_s) else first


def leave_ephemeral(state: CycleState, slot: Slot, other: Share) -> None:
    """Leave an ephemeral slot to another study, and notify it."""
    leave_to(state, other.study_id)
    state.cluster.left_ephemeral.add((slot.worker_id, slot.index))
    usage = other.usage.hold_ephemeral(1, state.study.now_s)
    state.cluster.others[other.study_id] = replace(other, usage=usage, wanted=other.wanted - 1)


def next_of(share: Share) -> Waiting:
    """The trial of another study that waits for slots."""
    assert share.wants is not None
    number = share.reserved.number if share.reserved else -1
    return Waiting(
        key=(share.study_id, number), request=share.wants, priority=share.priority, group=share.study_id
    )


def _is_next(state: CycleState) -> bool:
    """Whether no study goes before this one: only then does it get a new reservation, and are others asked to
    leave."""
    cluster, now_s = state.cluster, state.study.now_s
    own = own_claim(state)
    return not cluster.ahead_of(own, now_s) and not cluster.others_may_go_before(own)


def _ask_of_the_overdrawn(state: CycleState, running: tuple[Running, ...]) -> None:
    """The trial only waits for its turn. If a study has more than its share, one of its trials leaves at its rung."""
    cluster, own, now_s = state.cluster, own_share(state), state.study.now_s
    if own.wanted <= 0 or any(run.asked for run in running):
        return
    ours = claim(own, cluster.totals, now_s)
    over = {
        other.study_id
        for other in cluster.others.values()
        if other.priority == own.priority and ours < claim(_with_held(other, now_s), cluster.totals, now_s)
    }
    asked = sorted(
        (run for run in running if run.key[0] in over and run.leaves_in_s is not None),
        key=lambda run: (run.leaves_in_s, run.grant_id),
    )
    if asked:
        state.ask_to_leave(asked[0].grant_id, project=asked[0].project, at_report=False)


def _with_held(share: Share, now_s: float) -> Share:
    """A study with one grant less: it must be ahead by more than what it would give up."""
    usage = share.usage
    gpu = usage.gpu_milli > 0
    milli = min(1000, usage.gpu_milli if gpu else usage.cpu_slots * 1000)
    return replace(share, usage=usage.hold(gpu, -milli, now_s))


# --- slots -----------------------------------------------------------------------------------------------


def _spare(
    state: CycleState,
    trial: Trial,
    waiting: Waiting,
    devices: tuple[Slot, ...],
    kept: list[Reservation],
    milestone: int,
) -> Placement | None:
    """Spare slots for a finalist, while nothing else waits for them."""
    most = spare_slots(state.study.spec, milestone)
    own = waiting.request.whole_slots
    if most <= own or not _nothing_else_waits(state, trial):
        return None
    for slots in range(int(min(most, len(devices), quotas.most_slots(state))), own, -1):
        larger = replace(waiting, request=waiting.request.grown(slots))
        placement = fit(devices, larger, kept)
        if placement is not None:
            return replace(placement, rule="spare")
    return None


def _nothing_else_waits(state: CycleState, trial: Trial) -> bool:
    if state.cluster.others_wait:
        return False
    if any(number != trial.number for number in state.queue) or state.more:
        return False
    promotion = state.next_promotion()
    return promotion is None or promotion.trial == trial.number


def _devices(state: CycleState) -> tuple[Slot, ...]:
    return _without(tuple(slot for slot in state.free if not slot.owner), state.cluster.withheld)


def _without(devices: tuple[Slot, ...], withheld: list[Placement]) -> tuple[Slot, ...]:
    for placement in withheld:
        devices = without(devices, placement)
    return devices


def _others_reservations(state: CycleState) -> list[Reservation]:
    return state.cluster.reservations(state.study.now_s)


def _own_reservation(state: CycleState, waiting: Waiting) -> Reservation | None:
    """The study's reservation is for its first trial of that size, whichever that is now."""
    own, kept = own_share(state).reservation(state.study.now_s), state.study.standing.reserved
    if own is None or kept is None or kept.shape != waiting.request.shape:
        return own
    return replace(own, key=waiting.key)


def _quantum_s(state: CycleState) -> float:
    """About how long a grant is held: the mean length of a rung, in seconds at the mean speed."""
    standing: Standing = state.study.standing
    seconds = sum(took for _, took in standing.speeds.values())
    steps = sum(count for count, _ in standing.speeds.values())
    if not steps:
        return standing.quantum_s
    spec = state.study.spec
    rungs = len(state.fold.policy.ladder(0))
    return max(1e-3, seconds / steps * spec.max_steps / rungs)
