"""The heart of the scheduler: what follows from the inputs of one study.

    decide(study, inputs, fold, rows) → Plan

`decide` is pure: no clock, no database, no randomness beyond the study's seed. It is a generator that yields the
questions that it needs answered (`core.needs`) and is sent the answers. It runs once and is never restarted,
because results are folded into the policy on the way. A caller that abandons a decision must drop the fold with
it.

The order: load the rows that the inputs name; apply the inputs one after the other, those that reopen trials
first; offer free slots, place trials, reserve slots for a trial that fits nowhere; end the study if nothing is
left; read the rows that the answers show.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace_services.scheduler.core import (
    closing,
    cluster_view,
    code_changes,
    dispatch,
    ephemeral_slots,
    hours,
    idle_slots,
    placing,
    preemption,
    rebalancing,
    reopening,
    seats,
    sharing,
    unreadable_checkpoints,
    until,
    views,
)
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import (
    ExitedArrived,
    Input,
    Leased,
    LeaseExpired,
    OnTrial,
    Outcome,
    Reopening,
    ReportArrived,
    RetryTrials,
)
from headrace_services.scheduler.core.needs import (
    AbleWorkers,
    Candidates,
    Deciding,
    Decisions,
    Named,
    ResultsAfter,
    Rows,
    SilentLeases,
    Unfinished,
    UnstartedCount,
    UserPausedCount,
    ask,
)
from headrace_services.scheduler.core.placement import Request, accepts_ephemeral, is_suspect, sizes_differ
from headrace_services.scheduler.core.plan import Effects, Plan
from headrace_services.scheduler.core.records import Study
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import Standing

FREE_SLOTS_AT_ONCE = 64
"""How many free slots that suit its trials one cycle considers; the rest are left to the next cycle."""
ENDED_AT_ONCE = 256
"""When a study has ended, how many of its trials that do not run one cycle terminates."""
KEEP_EVERY_S = 1.0
"""How often a study with a trial that fits nowhere checks whether to reserve slots for it."""
_FOR_OTHERS = frozenset({"UNPREPARED", "UNREACHED"})
"""Exits after which other workers are sought."""


def named(inputs: Iterable[Input]) -> Named:
    """The rows that the inputs name, to be read in the same round trip as the study."""
    leases: set[str] = set()
    numbers: set[int] = set()
    shown: set[int] = set()
    for one in inputs:
        match one:
            case Leased():
                leases.add(one.lease_id)
                numbers.add(one.number)
                if isinstance(one, ExitedArrived) and one.sequence is None:
                    shown.add(one.number)
            case OnTrial():
                numbers.add(one.number)
                shown.add(one.number)
            case RetryTrials(numbers=frozenset(retried)):
                numbers |= retried
            case _:
                pass
    return Named(leases=frozenset(leases), numbers=frozenset(numbers), histories=frozenset(shown))


def decide(
    study: Study,
    inputs: Sequence[Input],
    fold: Fold,
    rows: Rows,
    *,
    keep_every_s: float = KEEP_EVERY_S,
    most_gap_s: float = hours.MOST_GAP_S,
) -> Deciding[Plan]:
    """Decide what follows from the inputs, in their order.

    `study` is the study's row under its lock, `fold` what the policy has seen up to that row's cursor, `rows` the
    answer to `named(inputs)`. A simulator, in which reservations cost no time and there are no outages, passes
    `keep_every_s` = 0 and `most_gap_s` = `hours.NO_OUTAGES`.
    """
    state = CycleState(study, fold)
    state.add_rows(rows)
    yield from hours.bring_up(state, most_gap_s)
    yield from _prepare(state, inputs)
    refused: dict[int, HeadraceError] = {}
    for position, one in sorted(enumerate(inputs), key=_reopens_nothing):
        try:
            if isinstance(one, Reopening):
                state.outcomes[position] = yield from reopening.apply(state, one)
            else:
                state.outcomes[position] = dispatch.apply(state, one, position=position)
        except HeadraceError as error:
            refused[position] = error
    until.look(state)
    yield from closing.advance(state)
    slots_left = again = False
    looks = state.wants_placement and not state.study.state.ended
    if looks:
        slots_left, again = yield from _place(state, study.standing, len(inputs), keep_every_s)
    placing.answer_pending_suggestions(state)
    ends_now = not study.state.ended or state.study.revision != study.revision
    is_being_ended = study.standing.ended_through is not None
    if state.study.state.ended and (ends_now or is_being_ended):
        known = len(state.free)
        again = yield from _finish(state)
        slots_left = slots_left or len(state.free) > known
    hours.settle(state)
    state.changes.forget_asks(state.study)
    state.orders += preemption.preemptions(state)
    outcomes = tuple(_outcome(state, refused, position) for position in range(len(inputs)))
    shown = yield from views.shown(state, inputs, outcomes)
    assert not state.changes.has_rows or state.study.cursor > study.cursor, "other replicas would not see it"
    return Plan(
        before=study,
        study=state.study,
        changes=state.changes,
        outcomes=outcomes,
        shown=shown,
        effects=Effects(
            orders=tuple(state.orders),
            slots_left=slots_left,
            again=again,
            looked=looks,
            rests_s=_rests_s(state),
            look_again=state.cluster.passed_over
            and (state.cluster.blocked is not None or state.cluster.held_off > 0),
            wake=tuple(sorted(state.cluster.kicks)),
            proposals_wanted=state.proposals_wanted,
        ),
    )


def _reopens_nothing(numbered: tuple[int, Input]) -> bool:
    """A sort key that puts inputs first that reopen trials: they rebuild the fold from rows that do not include
    this cycle."""
    return not isinstance(numbered[1], Reopening)


def _rests_s(state: CycleState) -> float | None:
    """How long until a trial may run that may not be placed yet."""
    return None if state.rests_until_s is None else max(0.0, state.rests_until_s - state.study.now_s)


def _outcome(state: CycleState, refused: dict[int, HeadraceError], position: int) -> Outcome | HeadraceError:
    outcome = refused.get(position) or state.suggested.get(position) or state.outcomes.get(position)
    assert outcome is not None
    return outcome


def _prepare(state: CycleState, inputs: Sequence[Input]) -> Deciding[None]:
    """Read what judging the inputs may need beyond the rows that they name."""
    repeated = frozenset(
        (one.number, one.attempt, one.sequence)
        for one in inputs
        if isinstance(one, ReportArrived)
        and one.sequence is not None
        and one.lease_id in state.leases
        and one.sequence <= state.leases[one.lease_id].last_sequence
    )
    if repeated:
        state.answers.update((yield from ask(Decisions(keys=repeated))))
    expired = frozenset(one.lease_id for one in inputs if isinstance(one, LeaseExpired))
    if expired:
        state.silent = yield from ask(SilentLeases(leases=expired))
    if state.fold.policy.new_trials_first:
        state.unstarted = yield from ask(UnstartedCount())
    on_workers = state.study.spec.template is not None
    exits = [one for one in inputs if isinstance(one, ExitedArrived)]
    ends = [one.outcome for one in exits]
    if on_workers and ends and (not state.study.reports or not _FOR_OTHERS.isdisjoint(ends)):
        request = Request.of(state.study.spec.resources.each[-1], state.study.standing.avoided)
        state.able = yield from ask(AbleWorkers(request=request))
    yield from unreadable_checkpoints.look_ahead(state, exits)
    yield from until.look_ahead(state, inputs)
    yield from code_changes.look_ahead(state, inputs)
    yield from cluster_view.look_for_spare(state)
    yield from idle_slots.look_ahead(state, inputs)
    yield from ephemeral_slots.look_ahead(state, inputs)
    yield from rebalancing.look_ahead(state, inputs)


def _place(
    state: CycleState, before: Standing, inputs: int, keep_every_s: float
) -> Deciding[tuple[bool, bool]]:
    """Reclaim, repack, relaunch. Returns whether slots are left over, and whether there is more to place."""
    freed = list(state.free)
    if state.study.spec.template is not None:
        yield from cluster_view.look_around(state, FREE_SLOTS_AT_ONCE)
        sharing.join(state)
    offered = len(state.free)
    next_one, reserved = state.next_promotion(), before.reserved
    named = [next_one.trial] if next_one else []
    if reserved is not None and sizes_differ(state.study.spec, reserved):  # its trial may no longer wait
        named.append(reserved.number)
    spec = state.study.spec
    limit = offered + len(state.pending_suggestions) + placing.LOOKAHEAD + inputs + 1
    if spec.resources.by is not None or spec.fuse is not None or accepts_ephemeral(spec):
        limit += placing.PASSED_OVER
    wanted = Candidates(
        limit=limit if spec.fuse is None else limit + placing.LAUNCHES_AT_ONCE,
        numbers=frozenset(named) - state.trials.keys(),
        bundles=seats.BUNDLES_AT_ONCE if spec.fuse is not None else 0,
        now_s=state.study.now_s,
    )
    waiting = yield from ask(wanted)
    if suspects := sum(
        map(is_suspect, waiting.runnable)
    ):  # each waits for a whole GPU; others may fit behind them
        wider = wanted.limit + min(suspects, placing.PASSED_OVER)
        waiting = yield from ask(replace(wanted, limit=wider))
    state.rest(waiting.rests_until_s)
    state.live_before(waiting.live)
    state.add_rows(waiting.rows)
    state.add_bundles(waiting.bundles)
    state.load_queue(waiting.runnable)
    yield from placing.place(state, pass_over=False)
    yield from cluster_view.keep_slots(state, keep_every_s)
    on_ephemeral = state.cluster.held_off > 0 and ephemeral_slots.any_open(state)
    if state.cluster.blocked is not None or on_ephemeral or seats.OpenSeats(state).any:
        yield from placing.place(state, pass_over=True)
    if not state.live and not state.queue:  # it may be complete; the count visits all trials
        state.user_paused += yield from ask(UserPausedCount())
    if placing.is_complete(state):
        yield from _sum_up(state)
    placing.settle(state)
    sharing.settle_standing(state)
    used_up = bool(state.changes.granted) and not cluster_view.more_fits(state)
    slots_left = cluster_view.left_over(state, before, freed)
    if slots_left and state.study.spec.template is not None:
        yield from sharing.hand_on(state)
        slots_left = cluster_view.left_over(state, before, freed)
    return slots_left, (offered >= FREE_SLOTS_AT_ONCE and used_up) or state.cut_short


def _sum_up(state: CycleState) -> Deciding[None]:
    """Read the outcomes of all trials, as far as the study's end depends on them."""
    state.results = state.own_results()
    after = -1
    while not state.results.settled and (page := (yield from ask(ResultsAfter(number=after)))):
        for result in page:
            if result.number not in state.trials:
                state.results.add(result)
        after = page[-1].number


def _finish(state: CycleState) -> Deciding[bool]:
    """Terminate the remaining trials of a study that has ended: all that run, and a page of the others.

    Returns whether later cycles have more to terminate. A study may leave many thousands of trials behind.
    """
    before = state.study.standing.ended_through
    left = yield from ask(Unfinished(after=-1 if before is None else before, limit=ENDED_AT_ONCE))
    state.add_rows(left.rows)
    dispatch.finish(state, [trial.number for trial in left.rows.trials])
    dispatch.finish(state, state.trials)  # and those that this cycle created
    if left.through != before:
        state.stand(ended_through=left.through)
    return left.through is not None
