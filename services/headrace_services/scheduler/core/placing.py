"""Repack and relaunch: what runs next, on which slots, and when nothing is left to run."""

from collections.abc import Container, Set

from headrace import ephemeral
from headrace.folders import study_folder
from headrace.spec import StudySpec
from headrace_services.scheduler.core import ephemeral_slots, events, failed_starts, quotas, seats, sharing
from headrace_services.scheduler.core.inputs import Assignment, ProposalComingError, Suggested
from headrace_services.scheduler.core.lifecycle import BY_USER, Action, State, StudyState
from headrace_services.scheduler.core.needs import Deciding, Named, ask
from headrace_services.scheduler.core.placement import (
    Placement,
    Request,
    is_suspect,
    request_of,
    requests_of,
    sizes_differ,
)
from headrace_services.scheduler.core.placement.joints import WORDS, Link, joint, kind, kind_of
from headrace_services.scheduler.core.placement.speeds import grant_kind, step_s
from headrace_services.scheduler.core.policies import Action as Ruling
from headrace_services.scheduler.core.policies import Promotion
from headrace_services.scheduler.core.records import Grant, Lease, Params, Part, Proposal, Slot, Trial
from headrace_services.scheduler.core.sampling import is_pooled
from headrace_services.scheduler.core.state import CycleState

LOOKAHEAD = 4
"""How many configurations to have ready beyond those that run, so that a freed slot never waits for a sampler."""
PASSED_OVER = 64
"""How many trials that find no slots are passed over in favour of later ones: smaller ones if configurations
differ in size, and those that find a seat."""
LAUNCHES_AT_ONCE = 256
"""How many trials of a study with bundles one cycle launches; the next cycle launches the others."""


def place(state: CycleState, *, pass_over: bool) -> Deciding[None]:
    """Give free slots, or waiting clients, their next trials.

    Without `pass_over` it stops at the first trial that fits nowhere, so that slots can be reserved for it
    (`sharing.keep`) before smaller ones are placed around it.
    """
    passed_over: set[int] = set()
    hopeless: set[tuple[int, int, int]] = (
        set()
    )  # sizes of which nothing is free, if trials may be passed over
    open_seats = seats.OpenSeats(state)
    state.cluster.blocked, state.cluster.held_off = None, 0
    while state.active and len(passed_over) < PASSED_OVER:
        if _is_full(state) and not open_seats.any:
            break
        if state.study.spec.fuse is not None and len(state.changes.granted) >= LAUNCHES_AT_ONCE:
            state.cut_short = True
            break
        if state.study.spec.template is None and not state.pending_suggestions:
            break
        job = _next_job(state, passed_over)
        if job is None:
            break
        number, promotion = job
        if number not in state.trials:
            state.add_rows((yield from ask(Named(numbers=frozenset({number})))))
        trial = state.trials[number]
        shunned = failed_starts.shunned(state.study, number) is not None
        placement = bundle = None
        if state.study.spec.template is not None:
            milestone = promotion.to_milestone if promotion else trial.milestone or state.study.spec.max_steps
            shape = _shape(state, trial)
            held_off = not _is_full(state) and quotas.keep_off(state, trial)
            if shape not in hopeless and not _is_full(state) and not held_off:
                placement = yield from sharing.find(state, trial, milestone)
            if placement is None and not held_off and _let_go_of_stale(state, number):
                placement = yield from sharing.find(state, trial, milestone)
            if placement is None:
                hopeless |= {shape} if shape and not shunned else set()
                bundle = open_seats.of(trial, _params_after(trial, promotion))
            if placement is None and bundle is None and not _is_full(state):
                placement = yield from ephemeral_slots.find(state, trial, milestone)
            if placement is None and bundle is None:
                bundle = yield from ephemeral_slots.seat(
                    state, trial, _params_after(trial, promotion), milestone
                )
            if placement is None and bundle is None:
                if state.cluster.blocked is None and not _is_full(state) and not held_off:
                    state.cluster.blocked = sharing.waiting_for(state, trial, milestone)
                if held_off:
                    quotas.note(state, trial)
                passed_over.add(number)
                smaller = _may_pass_over(state, trial, hopeless) or _kept_for(state, passed_over)
                may_pass = (
                    (not held_off and (smaller or shunned))
                    or open_seats.any
                    or ephemeral_slots.any_open(state)
                )
                if not pass_over or not may_pass:
                    break
                continue
            elsewhere = bundle is not None or (placement is not None and placement.rule == ephemeral.RULE)
            if elsewhere and state.cluster.blocked is not None and state.cluster.blocked.key[1] == number:
                state.cluster.blocked = None  # it waits for no slot
        if promotion is not None:
            _promote(state, promotion)
        if not state.trials[number].user_paused:
            _launch(state, state.trials[number], placement, bundle)


def _params_after(trial: Trial, promotion: Promotion | None) -> Params:
    """The configuration that a trial continues with."""
    return (
        promotion.exploit.params if promotion is not None and promotion.exploit is not None else trial.params
    )


def _is_full(state: CycleState) -> bool:
    """Whether the study has as many grants as it may have."""
    limit = state.study.spec.max_parallel
    return bool(limit) and state.live >= limit


def _shape(state: CycleState, trial: Trial) -> tuple[int, int, int] | None:
    """A trial's size, if later trials may be placed when it is not: configurations differ in size, or some trials
    find seats."""
    spec = state.study.spec
    return None if spec.resources.by is None and spec.fuse is None else request_of(spec, trial).shape


def _may_pass_over(state: CycleState, trial: Trial, hopeless: Set[tuple[int, int, int]]) -> bool:
    """Whether a smaller trial might fit behind one that does not: only if trials differ in size."""
    spec = state.study.spec
    if not state.free:
        return False
    if spec.resources.by is not None:
        return not hopeless >= {request.shape for request in requests_of(spec)}
    if is_suspect(trial):
        return True
    if spec.elastic is None:
        return False
    return request_of(spec, trial).size > Request.of(spec.resources).size


def settle(state: CycleState) -> None:
    """After placing, check whether the study is complete; if not, make configurations ahead of need."""
    if is_complete(state):
        assert state.results is not None, "the results are loaded where nothing is left to run"
        if state.results.usable:
            state.move_study(StudyState.COMPLETED, state.results.how_completed())
        else:
            state.move_study(StudyState.FAILED, state.results.why_none())
    while state.active and len(state.queue) < LOOKAHEAD and _create_next(state) is not None:
        pass
    if state.active and next_is_pooled(state):
        ready = lookahead(state.study.spec, state.live) + len(state.pending_suggestions)
        ready += min(seats.OpenSeats(state).count, LAUNCHES_AT_ONCE)
        state.proposals_wanted = max(0, ready - len(state.queue))


def answer_pending_suggestions(state: CycleState) -> None:
    """Answer the clients that got no trial: there is none, or one is coming."""
    coming = state.active and next_is_pooled(state)
    for position, _ in state.pending_suggestions:
        state.suggested[position] = (
            ProposalComingError()
            if coming
            else Suggested(
                trial=None, lease=None, done=state.study.state.ended or state.study.closing is not None
            )
        )
    state.pending_suggestions.clear()


def lookahead(spec: StudySpec, live: int) -> int:
    """How many configurations to have ready. There are few if a model proposes them, as each was proposed without
    the results that have arrived since. There are more if many trials run, any of which may end at any moment, or
    if one may be too large for the free slots."""
    if spec.resources.by is not None:
        return LOOKAHEAD
    return min(LOOKAHEAD, 1 + live // 16) if is_pooled(spec) else LOOKAHEAD


def next_is_pooled(state: CycleState) -> bool:
    """Whether the pool computes the next configuration."""
    index, pooled = state.study.sampled, state.fold.pooled_from
    if pooled is None or _baseline_is_due(state) or index >= state.sampled_limit:
        return False
    return index >= len(state.study.spec.enqueued) + pooled


def create(
    state: CycleState, params: Params, *, baseline: bool = False, proposal: Proposal | None = None
) -> Trial:
    """Add a trial with a configuration."""
    number = state.study.next_number
    bracket = 0 if baseline else state.fold.bracket(number)
    trial = Trial(
        study_id=state.study.id,
        number=number,
        params=dict(params),
        baseline=baseline,
        bracket=bracket,
        generation=proposal.generation if proposal else None,
        source=proposal.source if proposal else None,
        milestone=state.fold.policy.ladder(bracket)[0],
        create_time=state.study.now,
    )
    state.add(trial, proposal)
    return trial


def create_baseline(state: CycleState) -> Trial | None:
    """Create the baseline, the first trial of a study that has one; None if it exists, or the study has none."""
    baseline = state.study.spec.baseline
    return (
        create(state, baseline, baseline=True) if baseline is not None and _baseline_is_due(state) else None
    )


def _next_job(state: CycleState, passed_over: Container[int] = ()) -> tuple[int, Promotion | None] | None:
    """What to run next: interrupted trials, then promotions, then new configurations. If a trial found no slots,
    the one with a reservation comes first: its reserved slots may be those that the other trial lacks."""
    if passed_over and (kept := _kept_for(state, passed_over)):
        return kept
    first = _first_in_queue(state, passed_over)
    if first is not None and state.trials[first].attempt:
        return first, None
    new_first = state.fold.policy.new_trials_first and (first is not None or _create_next(state))
    promotion = None if new_first else state.next_promotion()
    if promotion is not None and promotion.trial not in passed_over:
        return promotion.trial, promotion
    if _first_in_queue(state, passed_over) is None and _create_next(state) is None:
        return None
    first = _first_in_queue(state, passed_over)
    return None if first is None else (first, None)


def _kept_for(state: CycleState, passed_over: Container[int]) -> tuple[int, Promotion | None] | None:
    """The first trial with the size of the study's reservation, in studies whose trials grow on their way."""
    spec, reserved = state.study.spec, state.study.standing.reserved
    if spec.elastic is None or reserved is None:
        return None
    found = _of_shape(state, reserved.shape, passed_over)
    promotion = state.next_promotion()
    return None if found is None else (found, promotion if promotion and promotion.trial == found else None)


def _of_shape(
    state: CycleState, shape: tuple[int, int | None, int | None], passed_over: Container[int] = ()
) -> int | None:
    """The first trial that waits for a grant of this shape."""
    promotion = state.next_promotion()
    for number in [*state.queue, *([promotion.trial] if promotion else [])]:
        trial = state.trials.get(number)
        if number in passed_over or trial is None:
            continue
        if request_of(state.study.spec, trial).shape == shape:
            return number
    return None


def _let_go_of_stale(state: CycleState, number: int) -> bool:
    """Cancel the reservation for a trial that no longer waits because another one was promoted in its place: if
    trials differ in size, trial `number` may need those slots. Returns whether there was one."""
    reserved = state.study.standing.reserved
    if reserved is None or not sizes_differ(state.study.spec, reserved):
        return False
    trial = state.trials.get(reserved.number)
    if trial is None or trial.runnable or _of_shape(state, reserved.shape) is not None:
        return False
    state.give_up_reservation()
    if state.cluster.blocked is not None and state.cluster.blocked.key[1] == number:
        state.cluster.blocked = None  # it is checked again
    return True


def _first_in_queue(state: CycleState, passed_over: Container[int]) -> int | None:
    return next((number for number in state.queue if number not in passed_over), None)


def _promote(state: CycleState, promotion: Promotion) -> None:
    state.mark_promoted(promotion.trial, promotion.bracket, promotion.rung)
    said = ""
    if state.trials[promotion.trial].user_paused:
        said = f"{BY_USER}; otherwise it would continue: {promotion.explanation.sentence}"
    state.explain(promotion.trial, Ruling.CONTINUE, promotion.explanation, said=said)
    if promotion.exploit is not None:
        state.exploit(promotion.exploit)
    state.update(promotion.trial, milestone=promotion.to_milestone)


def _launch(state: CycleState, trial: Trial, placement: Placement | None, bundle: Grant | None) -> None:
    """Start a trial on free slots, in a bundle that others are in, or for a client."""
    slots = placement.slots if placement else ()
    if bundle is not None:
        slots = state.bundles[bundle.id]
    if trial.number in state.queue:
        state.queue.remove(trial.number)
    attempt = max(trial.attempt, state.study.attempts_from) + 1
    resume = trial.checkpoint if trial.state is State.PAUSED else None
    client = None if slots else state.pending_suggestions.pop(0)
    lease_id = f"{state.study.uid}.{trial.number}.{attempt}"
    goes_on = seats.revived(state, trial, placement) if placement else None
    lease = Lease(
        id=lease_id,
        study_id=state.study.id,
        number=trial.number,
        attempt=attempt,
        worker_id=slots[0].worker_id if slots else None,
        incarnation=slots[0].incarnation if slots else "",
        client_id=client[1].client_id if client else "",
        ttl_s=client[1].ttl_s if client else None,
        grant=bundle or goes_on or (_grant(lease_id, state, trial, placement) if placement else None),
        step=resume.step if resume else 0,
        resume=resume,
        budget=_budget(state, trial),
    )
    if bundle is not None:
        said = _seat(state, bundle, slots, bundle.leases + 1)
        said += f", {ephemeral.placed(bundle.owner_stage)}" if bundle.owner_stage else ""
        state.emit(events.trial_placed(trial.number, slots, bundle.milli, "seat", said))
        state.join(lease, slots)
    else:
        if placement is not None and (said := _told(state, placement, lease)):
            state.emit(events.trial_placed(trial.number, slots, placement.milli, placement.rule, said))
        if (
            placement is not None and placement.rule == "backfill"
        ):  # after its next rung the slots are another study's
            assert lease.grant is not None
            state.ask_to_leave(lease.grant.id, project=state.study.project, at_report=False)
        if goes_on is not None:
            state.revive(lease, slots)
        else:
            state.give(lease, slots)
    folder = study_folder(state.study.name, state.study.uid)
    log_path = f"{slots[0].log_dir}/{folder}/{trial.number}.log" if slots else trial.log_path
    action = Action.RESUME if trial.state is State.PAUSED else Action.LAUNCH
    changes = {
        "log_path": log_path,
        "detail": "",
        "bubbles": ephemeral_slots.with_owner(trial, lease.owner_stage),
    }
    held = {"attempt": attempt, "lease_id": lease.id, "not_before_s": None, "budget": lease.budget}
    state.move(trial.number, action, **held, **changes)
    moved = state.trials[trial.number]
    if client:
        state.suggested[client[0]] = Suggested(trial=moved, lease=lease, done=False)
    else:
        state.orders.append(Assignment(worker_id=slots[0].worker_id, trial=moved, lease=lease))


def _budget(state: CycleState, trial: Trial) -> int:
    """The full budget that an attempt sees. A trial that began with a smaller one, before the study was extended, keeps
    it until it has reached it, as one does that nothing interrupts: otherwise a pause would change what it computes."""
    full = state.study.spec.max_steps
    return trial.budget if trial.budget is not None and (trial.milestone or full) <= trial.budget else full


def _grant(lease_id: str, state: CycleState, trial: Trial, placement: Placement) -> Grant:
    """A new grant of the placed slots, with the id of its first lease."""
    on: dict[tuple[int, str], list[int]] = {}
    for slot in placement.slots:
        on.setdefault((slot.worker_id, slot.incarnation), []).append(slot.index)
    return Grant(
        id=lease_id,
        study_id=state.study.id,
        parts=tuple(
            Part(worker_id=worker_id, incarnation=incarnation, slots=tuple(indices))
            for (worker_id, incarnation), indices in on.items()
        ),
        milli=placement.milli,
        memory_bytes=placement.memory_bytes,
        model=kind_of(placement.slots),
        seats=seats.seats_for(state, trial, placement),
        key=seats.key_of(state.study.spec, trial.params),
        owner_stage=placement.slots[0].owner_stage,
    )


def _told(state: CycleState, placement: Placement, lease: Lease) -> str:
    """What is noteworthy about a placement, in words; empty for an ordinary one."""
    told = []
    if lease.grant is not None and lease.grant.seats > 1:
        told.append(_seat(state, lease.grant, placement.slots, 1))
    if placement.rule == "spare":
        count = len(placement.slots)
        told.append(f"on {count} slot{'s' * (count > 1)}, as no other trial waits")
    elif placement.rule == ephemeral.RULE:
        told.append(ephemeral.placed(placement.slots[0].owner_stage))
    elif placement.rule == "backfill":
        told.append("on slots that are reserved for another trial: it ends before that one can start")
    if joint(placement.slots) is not Link.UNKNOWN:
        told.append(_how_joined(state, placement))
    return "; ".join(told)


def _seat(state: CycleState, bundle: Grant, slots: tuple[Slot, ...], seat: int) -> str:
    """A trial's place in a bundle, in words. A bundle is named after its first lease."""
    most = min(bundle.seats, seats.capacity_of(state, bundle, slots).trials)
    return f"seat {seat} of {most} in bundle {bundle.id}"


def _how_joined(state: CycleState, placement: Placement) -> str:
    """The interconnect of a gang's slots, with the step times measured for each kind."""
    slots = placement.slots
    listed = ", ".join(str(slot.index) for slot in slots)
    measured = []
    for link, words in WORDS.items():
        name = grant_kind(kind(slots[0].model, link), len(slots), placement.milli)
        per_step = step_s(name, state.study.standing.speeds, {})
        if per_step is not None:
            measured.append(f"{per_step:.3g} s a step with {words}")
    beside = f" (measured: {', '.join(measured)})" if len(measured) > 1 else ""
    return f"slots {listed} are joined by {WORDS[joint(slots)]}{beside}"


def is_complete(state: CycleState) -> bool:
    """Whether an active study has nothing left to run."""
    idle = state.active and state.live == 0 and state.user_paused == 0 and not state.queue
    idle = idle and state.rests_until_s is None
    return idle and state.next_promotion() is None and not _more_to_create(state)


def _baseline_is_due(state: CycleState) -> bool:
    return state.study.spec.baseline is not None and state.study.next_number == 0


def _more_to_create(state: CycleState) -> bool:
    return _baseline_is_due(state) or state.more


def _create_next(state: CycleState) -> Trial | None:
    """Create the next configuration: the baseline, then enqueued ones, then the sampler's."""
    spec = state.study.spec
    if (baseline := create_baseline(state)) is not None:
        return baseline
    index = state.study.sampled
    if index >= state.sampled_limit or next_is_pooled(state):
        return None
    if index < len(spec.enqueued):
        params: Params | None = spec.enqueued[index]
    else:
        params = state.fold.propose(index - len(spec.enqueued))
    if params is None and state.fold.points is not None:
        state.end_proposals()  # the configurations that users added were the last points
        return None
    state.count_proposal()
    return create(state, params) if params is not None else None
