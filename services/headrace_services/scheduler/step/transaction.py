"""One step as one transaction: load under the lock, let the core decide, write, commit.

`run_step` is called by the runner alone, one at a time for a study and a replica; the lock on the study's row
orders it with the steps of other replicas. A step waits for the database twice where it can: to read, and to write and
commit; an answer that shows rows of which the step does not know how it leaves them takes a third wait, to be stored.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import HeadraceError, StudyNotFoundError
from headrace_services.scheduler.arrivals import (
    AddTrials,
    Arrival,
    ExitedArrived,
    Kick,
    Leased,
    LeaseExpired,
    Order,
    Outcome,
    PauseTrial,
    Proposed,
    ReportArrived,
    ResumeStudy,
    ResumeTrial,
    StopTrial,
)
from headrace_services.scheduler.records import Study, Trial
from headrace_services.scheduler.results import Results
from headrace_services.scheduler.step import cluster_rows, core, placing, sharing, showing
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.live import LiveRows
from headrace_services.scheduler.step.state import StepState
from headrace_services.scheduler.step.submissions import Answers, Settled, Shown, Submission
from headrace_services.scheduler.store import exploits, requests, rows, step_reads, trials, unseen
from headrace_services.scheduler.store.pipeline import Pipeline, pipeline
from headrace_services.scheduler.store.step_writes import Writes

FREE_SLOTS_AT_ONCE = 64
"""How many free slots that suit its trials one step looks at; more are left to the next one."""
_STARTS = (Kick, Proposed, AddTrials, ResumeStudy, ResumeTrial)
"""What lets trials start where there are free slots."""


class StepResult(Struct, frozen=True, kw_only=True):
    """What a committed step leaves to do."""

    settled: tuple[Settled, ...]
    orders: tuple[Order, ...]
    cache: StudyCache | None
    cursor: int
    slots_left: bool
    """Whether slots that this step freed found no trial here and may serve another study."""
    again: bool
    """Whether there was more to place than one step places."""
    kicks: tuple[int, ...] = ()
    """Other studies that free slots were left to."""
    proposals_wanted: int = 0
    """How many further proposals the pool is to compute."""


async def run_step(
    conn: AsyncConnection, study_id: int, submissions: Sequence[Submission], cache: StudyCache | None
) -> StepResult:
    """Run one step in the transaction of `conn`, and commit it. The caller drops the cache if that fails."""
    leases, numbers = _named(submissions)
    live = cache.live if cache else LiveRows()
    async with pipeline(conn) as sent:
        ask = step_reads.ask_study(sent, study_id, cache.spec if cache else None)
        asked = step_reads.ask_rows(sent, study_id, leases - live.leases.keys(), numbers - live.trials.keys())
        answered = requests.ask_answers(sent, [s.request for s in submissions if s.request is not None])
        ahead = _ask_ahead(sent, study_id, cache, submissions)
        histories = showing.ask_ahead(sent, study_id, cache, submissions)
    study = ask.study()
    if study is None:
        gone = StudyNotFoundError("the study was deleted")
        settled = tuple(Settled(outcome=gone) for _ in submissions)
        return StepResult(settled=settled, orders=(), cache=None, cursor=0, slots_left=True, again=False)
    cache = cache or StudyCache.empty(study.spec)
    if cache.cursor != study.cursor:
        await _catch_up(conn, study, cache)
        cache.live.clear()
        async with pipeline(conn) as sent:
            asked = step_reads.ask_rows(sent, study_id, leases, numbers)
    state = StepState(study, cache)
    await _load(conn, state, leases, numbers, asked)
    repeats = answered.answers()
    fresh = [
        (seat, s.arrival)
        for seat, s in enumerate(submissions)
        if s.request is None or s.request.id not in repeats
    ]
    await _load_answers(conn, state, [arrival for _, arrival in fresh])
    on_workers = study.spec.template is not None
    if on_workers and not study.reports and any(isinstance(arrival, ExitedArrived) for _, arrival in fresh):
        state.failed_on, state.connected = await step_reads.failed_and_connected(conn, study_id)
    outcomes: dict[int, Outcome | HeadraceError | None] = {}
    await cluster_rows.look_for_spare(conn, state)
    for seat, arrival in fresh:
        try:
            outcomes[seat] = core.apply(state, arrival, seat=seat)
        except HeadraceError as error:
            outcomes[seat] = error
    slots_left = again = False
    if state.wants_placement and not state.study.state.ended:
        slots_left, again = await _place(conn, state, len(fresh), ahead)
    elif ahead is not None:  # others passed over the slots that this step had locked
        slots_left = bool(ahead.cluster.free.slots())
    placing.answer_seats(state)
    outcomes.update(state.suggested)
    if state.study.state.ended and not study.state.ended:
        state.load(leases=await step_reads.live_leases(conn, study_id))
        await _load_slots(conn, state)
        async for unfinished in step_reads.unfinished_trials(conn, study_id):
            state.load(trials=unfinished)
            core.finish(state, [trial.number for trial in unfinished])
        core.finish(state, state.trials)  # and those that this step created
        slots_left = True
    return StepResult(
        settled=await _write_and_settle(
            conn, study, state, Answers(submissions, outcomes, repeats), histories
        ),
        orders=tuple(state.orders),
        cache=cache,
        cursor=state.study.cursor,
        slots_left=slots_left,
        again=again,
        proposals_wanted=state.proposals_wanted,
        kicks=tuple(sorted(state.room.kicks)),
    )


async def _catch_up(conn: AsyncConnection, study: Study, cache: StudyCache) -> None:
    """Fold in what other replicas did since the cache was last used."""
    async for page in unseen.trials_created(conn, study.id, cache.next_number):
        for row in page:
            cache.joined(row.number, row.bracket, row.params, baseline=row.baseline)
    folds: list[tuple[int, int, Callable[[], None]]] = []
    async for page in unseen.rung_results(conn, study.id, cache.cursor):
        for row in page:
            entry = rows.rung_entry(row)
            if row.cursor > cache.cursor:
                folds.append((row.cursor, 0, partial(cache.record, entry)))
            if row.promoted_cursor is not None and row.promoted_cursor > cache.cursor:
                past = partial(cache.promoted, entry.number, entry.bracket, entry.rung)
                folds.append((row.promoted_cursor, 1, past))
    if cache.spec.shares_checkpoints:
        for exploit, cursor in await exploits.since(conn, study.id, cache.cursor):
            folds.append((cursor, 1, partial(cache.policy.exploited, exploit)))
    async for page in unseen.trials_ended(conn, study.id, cache.cursor):
        folds += [(row.end_cursor, 2, partial(cache.policy.withdraw, row.number)) for row in page]
    for place, (_, _, fold) in enumerate(sorted(folds, key=itemgetter(0, 1)), start=1):
        fold()
        if place % unseen.AT_ONCE == 0:
            await asyncio.sleep(0)  # others have their turn
    cache.cursor = study.cursor


def _named(submissions: Sequence[Submission]) -> tuple[set[str], set[int]]:
    """The leases and the trials that arrivals speak of."""
    leases: set[str] = set()
    numbers: set[int] = set()
    for submission in submissions:
        match submission.arrival:
            case Leased() as arrival:
                leases.add(arrival.lease_id)
                numbers.add(arrival.number)
            case PauseTrial() | ResumeTrial() | StopTrial() as arrival:
                numbers.add(arrival.number)
            case _:
                pass
    return leases, numbers


async def _load(
    conn: AsyncConnection, state: StepState, leases: set[str], numbers: set[int], asked: step_reads.AskedRows
) -> None:
    """Give the step its copies of the named rows, and of the leases that the trials among them hold."""
    live = state.cache.live
    state.slots.update(asked.found_slots())
    state.load(
        trials=[*asked.found_trials(), *(live.trials[n] for n in numbers & live.trials.keys())],
        leases=[*asked.found_leases(), *(live.leases[i] for i in leases & live.leases.keys())],
    )
    held = {trial.lease_id for trial in state.trials.values() if trial.lease_id} - state.leases.keys()
    if missing := held - live.leases.keys():
        state.load(leases=await step_reads.leases(conn, missing))
    state.load(leases=[live.leases[lease_id] for lease_id in held - missing])
    state.slots.update({i: live.slots[i] for i in state.leases.keys() & live.slots.keys()})
    await _load_slots(conn, state)
    if state.cache.policy.new_trials_first:
        state.unstarted = await step_reads.unstarted_count(conn, state.study.id)


async def _load_answers(conn: AsyncConnection, state: StepState, arrivals: Sequence[Arrival]) -> None:
    """Load what was answered to reports that come again."""
    repeated = [
        (a.number, a.epoch, a.sequence)
        for a in arrivals
        if isinstance(a, ReportArrived)
        and a.sequence is not None
        and a.lease_id in state.leases
        and a.sequence <= state.leases[a.lease_id].last_sequence
    ]
    state.answers.update(await step_reads.decisions(conn, state.study.id, repeated))


async def _load_slots(conn: AsyncConnection, state: StepState) -> None:
    missing = [
        lease.id
        for lease in state.leases.values()
        if lease.live and lease.slots and lease.id not in state.slots
    ]
    state.slots.update(await step_reads.slots_of(conn, missing))


class _Ahead(Struct, frozen=True, kw_only=True):
    """What placing will need, asked for before it is known that anything is to be placed."""

    cluster: cluster_rows.Surroundings
    leases: frozenset[str]
    """The leases that may end."""
    slots: step_reads.AskedRows
    """What they hold."""


def _ask_ahead(
    sent: Pipeline, study_id: int, cache: StudyCache | None, submissions: Sequence[Submission]
) -> _Ahead | None:
    """Save a wait where slots are about to be given away: a lease that is live ends, or something may start.

    Of a report nobody knows before it is judged whether it frees anything. Free slots are locked by asking for them, so
    what gives nothing away does not ask.
    """
    if cache is None or cache.spec.template is None:
        return None
    arrivals = [submission.arrival for submission in submissions]
    ending = frozenset(
        arrival.lease_id
        for arrival in arrivals
        if isinstance(arrival, (ExitedArrived, LeaseExpired)) and arrival.lease_id in cache.live.leases
    )
    if not ending and not any(isinstance(arrival, _STARTS) for arrival in arrivals):
        return None
    slots = step_reads.ask_slots(sent, ending)
    cluster = cluster_rows.ask(sent, study_id, cache, FREE_SLOTS_AT_ONCE)
    return _Ahead(cluster=cluster, leases=ending, slots=slots)


async def _place(
    conn: AsyncConnection, state: StepState, arrivals: int, ahead: _Ahead | None
) -> tuple[bool, bool]:
    """Reclaim, repack, relaunch. Returns whether slots are left over, and whether there is more to place."""
    cluster = await _count_and_reclaim(conn, state, ahead)
    freed = list(state.free)
    if cluster is not None:
        await cluster_rows.take_in(conn, state, cluster)
        sharing.join(state)
    offered = len(state.free)
    limit = offered + len(state.seats) + placing.LOOKAHEAD + arrivals + 1
    state.load_queue(await _waiting(conn, state, limit))
    await _place_all(conn, state, pass_over=False)
    await cluster_rows.keep_slots(conn, state)
    await _place_all(conn, state, pass_over=True)
    if not state.live and not state.queue:  # it may be complete; the count visits all trials
        state.held += await step_reads.held_count(conn, state.study.id)
    if placing.is_complete(state):
        state.results = await _results(conn, state)
    placing.settle(state)
    sharing.settle_standing(state)
    used_up = bool(state.changes.granted) and not cluster_rows.more_fits(state)
    return cluster_rows.left_over(state, freed), offered >= FREE_SLOTS_AT_ONCE and used_up


async def _results(conn: AsyncConnection, state: StepState) -> Results:
    """What the trials came to, as far as the study's end depends on them."""
    results = state.own_results()
    async for page in step_reads.results(conn, state.study.id):
        if results.settled:
            break
        for result in page:
            if result.number not in state.trials:
                results.add(result)
    return results


async def _waiting(conn: AsyncConnection, state: StepState, limit: int) -> Iterable[Trial]:
    """Trials that could start now: from the copies where they are there, else as many rows as may be needed."""
    live = state.cache.live
    if live.waiting is not None:
        return live.waiting.values()
    found = await step_reads.runnable_trials(conn, state.study.id, limit)
    if len(found) < limit:
        live.waiting = {trial.number: trial for trial in found}
    return found


async def _place_all(conn: AsyncConnection, state: StepState, *, pass_over: bool) -> None:
    if pass_over and state.room.blocked is None:
        return
    while (number := placing.place(state, pass_over=pass_over)) is not None:
        state.load(trials=await step_reads.trials(conn, state.study.id, [number]))


async def _count_and_reclaim(
    conn: AsyncConnection, state: StepState, ahead: _Ahead | None
) -> cluster_rows.Surroundings | None:
    """Count the live leases, and ask the rows which of the slots that became free can be used again.

    Returns what there is of the cluster beyond, where the trials run on workers.
    """
    if not state.live_is_counted:
        state.live += await step_reads.live_count(conn, state.study.id)
        state.live_is_counted = True
    ended = {lease.id for lease in state.changes.updated.values() if not lease.live and lease.slots}
    known = ahead.slots.found_slots() if ahead else {}
    cluster = ahead.cluster if ahead else None
    async with pipeline(conn) as sent:
        asked = step_reads.ask_slots(sent, ended - ahead.leases if ahead else ended)
        if cluster is None and state.study.spec.template is not None:
            cluster = cluster_rows.ask(sent, state.study.id, state.cache, FREE_SLOTS_AT_ONCE)
    freed = known | asked.found_slots()
    state.free = []
    state.offer(slot for lease, slots in freed.items() if lease in ended for slot in slots if slot.placeable)
    return cluster


async def _write_and_settle(
    conn: AsyncConnection,
    before: Study,
    state: StepState,
    answers: Answers,
    histories: trials.AskedHistories | None,
) -> tuple[Settled, ...]:
    """Write what changed, answer, and commit; and keep the copies that the next step may need."""
    changes, after, cache = state.changes, state.study, state.cache
    assert not changes.has_rows or after.cursor > before.cursor, "other replicas would not see the change"
    for_others = cluster_rows.has_words(state)
    known = showing.known(state, answers.shown(), histories)
    await answers.make_early(Shown(conn=conn, trials=known))
    shown = answers.shown()
    async with pipeline(conn) as sent:
        if changes.has_rows or after != before:
            await Writes(sent).write(before, after, changes)
        requests.remember_all(sent, answers.to_remember())
        asked = trials.ask_views(sent, after.id, shown) if shown else None
        if not for_others and not answers.are_left:
            sent.commit()
    if for_others:
        await cluster_rows.write(conn, state)
    if for_others or answers.are_left:
        await answers.make_of_rows(Shown(conn=conn, trials=asked.views() if asked else {}))
        async with pipeline(conn) as sent:
            requests.remember_all(sent, answers.to_remember())
            sent.commit()
    cache.cursor = after.cursor
    count = state.live if state.live_is_counted else None
    cache.live.keep(state.leases.values(), state.trials, state.slots, count)
    showing.keep(state)
    return answers.settled()
