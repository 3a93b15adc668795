"""The working copy of a study in one cycle: copies of rows, and the operations that change them.

Every change goes through the few methods here, which keep the copies, the list of changes to write, the event log
and the counts consistent. `reports`, `exits`, `commands` and `placing` decide what to change.
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace.spec import StudySpec
from headrace_services.scheduler.core import earlier_ends, events, other_code, time_limits
from headrace_services.scheduler.core.capacity import Capacity, Profile
from headrace_services.scheduler.core.changes import Changes, PromotionChange, TrialChange
from headrace_services.scheduler.core.cluster_state import ClusterState
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import (
    Cancellation,
    Leased,
    Order,
    Outcome,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.lifecycle import (
    WITHOUT_RESULT,
    Action,
    Reason,
    State,
    StudyState,
    next_state,
)
from headrace_services.scheduler.core.needs import Rows
from headrace_services.scheduler.core.placement.fit import with_parts
from headrace_services.scheduler.core.placement.speeds import grant_kind, learn
from headrace_services.scheduler.core.policies import Action as Ruling
from headrace_services.scheduler.core.policies import Explanation, Promotion
from headrace_services.scheduler.core.records import (
    Bundle,
    Checkpoint,
    Decision,
    Event,
    Exploit,
    Grant,
    History,
    Lease,
    Proposal,
    Slot,
    Study,
    Trial,
)
from headrace_services.scheduler.core.results import Result, Results
from headrace_services.scheduler.core.scales import ScaleChoice
from headrace_services.scheduler.core.study_status import Closing, Leaving


class CycleState:
    """One study in one cycle."""

    def __init__(self, study: Study, fold: Fold) -> None:
        self.study = study
        self.fold = fold
        self.changes = Changes()
        self.orders: list[Order] = []
        self.trials: dict[int, Trial] = {}
        self.leases: dict[str, Lease] = {}
        self.grants: dict[str, Grant] = {}
        """The grants of these leases, each with its current count of live leases."""
        self.slots: dict[str, tuple[Slot, ...]] = {}
        """The slots that leases hold. Each slot's free part is the part that the lease holds, and that becomes
        free with it."""
        self.bundles: dict[str, tuple[Slot, ...]] = {}
        """The slots of grants with several seats, if seats may be open: grants that were offered, that this cycle
        started, or that a trial left."""
        self.profiles: dict[tuple[str, str], Profile] = {}
        """The study's bundle profiles, by kind of device and key."""
        self.capacities: dict[tuple[str, str, int], Capacity] = {}
        """The capacities computed from these, also by the memory of a device; only those that were needed."""
        self.histories: dict[int, History] = {}
        """The earlier histories of trials, as far as answers show them."""
        self.free: list[Slot] = []
        self.queue: list[int] = []
        """Runnable trials: interrupted ones first, then by number."""
        self.pending_suggestions: list[tuple[int, Suggest]] = []
        """Clients that wait for a trial."""
        self.suggested: dict[int, Suggested | HeadraceError] = {}
        """The answers to these clients, by the position of their inputs."""
        self.outcomes: dict[int, Outcome | None] = {}
        """The outcomes of the inputs, by position; None for a client that waits for a trial."""
        self.answers: dict[tuple[int, int, int], Decision] = {}
        """The answers to reports (number, attempt, sequence), given in this cycle or before."""
        self.live = 0
        """How many live grants the study has, where a client's lease counts as one. Until the rows are counted
        (`live_before`), only what this cycle has added or removed."""
        self._live_known = False
        self.user_paused = 0
        self.unstarted = 0
        """Trials that were never placed; counted only if the policy lets them go first."""
        self.results: Results | None = None
        """The outcomes of all trials; loaded when nothing is left to run."""
        self.rests_until_s: float | None = None
        """When the first trial may run that may not be placed yet."""
        self.earlier_checkpoints: dict[int, Checkpoint | None] = {}
        """The earlier checkpoints of trials that may have to give up theirs."""
        self.able: frozenset[str] = frozenset()
        """The workers that could run a trial of the study; loaded if trials fail before anything was reported."""
        self.silent: frozenset[str] = frozenset()
        """The leases that have expired, of those that a sweep reported as expired."""
        self.wants_placement = False
        """Whether, because of this cycle, something may be placed or the study may be complete."""
        self.reopened: frozenset[int] = frozenset()
        """The trials that this cycle lets continue after their end."""
        self.proposals_wanted = 0
        """How many further proposals the pool is to compute."""
        self.cluster = ClusterState()
        """What is known about the cluster beyond the study."""
        self.cut_short = False
        """Whether there is more to place than one cycle places."""
        self._vacancies: dict[tuple[int, int], list[int]] = {}
        self._found: set[tuple[int, int]] = set()
        """The free slots of the rows that were offered: the rows do not show what the cycle did with them."""

    @property
    def active(self) -> bool:
        """Whether the study starts trials."""
        study = self.study
        return study.state is StudyState.ACTIVE and study.after is None and study.closing is None

    def load(self, *, trials: Iterable[Trial] = (), leases: Iterable[Lease] = ()) -> None:
        """Add copies of rows, without replacing one that the cycle has changed."""
        for trial in trials:
            self.trials.setdefault(trial.number, trial)
        for lease in leases:
            self.leases.setdefault(lease.id, lease)
            if lease.grant is not None and lease.live:
                self.grants.setdefault(lease.grant.id, lease.grant)

    def add_rows(self, rows: Rows) -> None:
        """Add copies of rows."""
        self.load(trials=rows.trials, leases=rows.leases)
        for lease_id, slots in rows.slots.items():
            self.slots.setdefault(lease_id, slots)
        for profile in rows.profiles:
            self.profiles.setdefault((profile.device, profile.key), profile)
        self.histories.update(rows.histories)

    def add_bundles(self, bundles: Iterable[Bundle]) -> None:
        """Add copies of bundles whose seats are open in the rows."""
        for bundle in bundles:
            self.grants.setdefault(bundle.grant.id, bundle.grant)
            self.bundles.setdefault(bundle.grant.id, bundle.slots)

    def load_queue(self, trials: Iterable[Trial]) -> None:
        """Add copies of runnable trials, and put all that are runnable now in order."""
        self.load(trials=trials)
        waiting = [trial for trial in self.trials.values() if trial.runnable]
        resting = [trial for trial in waiting if trial.rests(self.study.now_s)]
        for trial in resting:
            self.rest(trial.not_before_s)
        runnable = [trial for trial in waiting if not trial.rests(self.study.now_s)]
        runnable.sort(key=lambda trial: (trial.attempt == 0, trial.number))
        self.queue = [trial.number for trial in runnable]

    def rest(self, until_s: float | None) -> None:
        """Record that trials may not be placed before then."""
        if until_s is not None:
            self.rests_until_s = until_s if self.rests_until_s is None else min(until_s, self.rests_until_s)

    def live_before(self, count: int) -> None:
        """Record how many live grants the study has in its rows. They are counted once."""
        if not self._live_known:
            self._live_known = True
            self.live += count

    def own_results(self) -> Results:
        """The results of the trials that this cycle has copies of; the rows have those of the others."""
        results = Results(self.study.spec)
        for trial in self.trials.values():
            results.add(Result.of(trial))
        return results

    @property
    def more(self) -> bool:
        """Whether there are configurations that the sampler has not been asked for yet."""
        return self.study.sampled < self.sampled_limit

    @property
    def sampled_limit(self) -> int:
        """How many configurations the sampler is asked for: fewer than first planned if it runs out."""
        return min(self.fold.sampled_limit, self.study.planned)

    def count_proposal(self) -> None:
        """Record that a configuration was proposed; an event says when it was the last one."""
        self.study = replace(self.study, sampled=self.study.sampled + 1)
        if not self.more:
            self.emit(events.proposals_ended(self.study.sampled))

    def end_proposals(self) -> None:
        """Record that no further configurations will be proposed."""
        self.study = replace(self.study, planned=self.study.sampled)
        self.emit(events.proposals_ended(self.study.sampled))

    def next_promotion(self) -> Promotion | None:
        """The trial that the policy would promote now."""
        return self.fold.policy.next_promotion(more=self.more)

    # --- trials --------------------------------------------------------------------------------------

    def move(self, number: int, action: Action, **changes: Any) -> None:
        """Move a trial according to the table of transitions, releasing its lease if it leaves its worker."""
        before = self.trials[number]
        state = next_state(before.state, action, checkpoint=before.checkpoint is not None)
        after = replace(before, state=state, **{"lapsed": False} | changes)
        after = replace(
            after,
            start_time=after.start_time or (self.study.now if after.attempt else None),
            end_time=self.study.now if state is State.TERMINATED else None,
        )
        after = replace(after, **time_limits.counted(self.study, before, after))
        after = earlier_ends.settled(self.study.spec, after)
        if before.leased and not after.leased:
            assert before.lease_id is not None
            after = replace(after, lease_id=None)
            self.release(self.leases[before.lease_id], "lapse" if after.lapsed else action.value)
        slots = self.slots.get(after.lease_id or before.lease_id or "", ())
        cursor = self.emit(events.trial_moved(before, after, action, slots))
        self._note(before, after, cursor)

    def terminate(self, number: int, reason: Reason, detail: str, **changes: Any) -> None:
        """End a trial."""
        if self.trials[number].user_paused:
            self.user_paused -= 1
        over: dict[str, Any] = {"reason": reason, "detail": detail, "milestone": None, "user_paused": False}
        self.move(number, Action.TERMINATE, **over, **changes)
        reserved = self.study.standing.reserved
        if reserved is not None and reserved.number == number:
            self.give_up_reservation()
        if number in self.queue:
            self.queue.remove(number)
        self.fold.ended(number, reason)
        if reason in WITHOUT_RESULT and (end := self.trials[number].counted) is not None:
            self.emit(events.result_stays(number, end, self.study.spec))
        self.wants_placement = True

    def reopen(self, number: int, milestone: int | None, why: str, *, ended: int) -> None:
        """Let a trial that an event has `ended` continue up to a milestone, or wait. Its failures and its time are
        counted from 0 again, and its earlier result is kept."""
        ends = earlier_ends.kept(self.study.spec, self.trials[number], ended)
        anew: dict[str, Any] = {
            "reason": None,
            "failures": 0,
            "losses_in_row": 0,
            "kills_in_row": 0,
            "log_tail": "",
        }
        anew["earlier_ends"] = ends
        anew["unread"] = anew["not_before_s"] = None
        anew["ran_s"] = 0.0
        self.move(number, Action.REOPEN, detail=why, milestone=milestone, **anew)
        if self.fold.policy.new_trials_first and self.trials[number].runnable:
            self.unstarted += not self.trials[number].attempt
        self.wants_placement = True

    def update(self, number: int, **changes: Any) -> Trial:
        """Change a trial without moving it."""
        before = self.trials[number]
        after = earlier_ends.settled(self.study.spec, replace(before, **changes))
        if after != before:
            self._note(before, after, self.study.cursor)
        return after

    def add(self, trial: Trial, proposal: Proposal | None = None) -> None:
        """Add a new trial."""
        self.study = replace(self.study, next_number=trial.number + 1)
        self.trials[trial.number] = trial
        self.fold.joined(trial.number, trial.bracket, trial.params, baseline=trial.baseline)
        self.changes.created.append(trial)
        self.queue.append(trial.number)
        self.emit(events.trial_created(trial, proposal))

    def mark_promoted(self, number: int, bracket: int, rung: int) -> None:
        """Record that a trial continues past a rung; the next event says why."""
        self.fold.promoted(number, bracket, rung)
        change = PromotionChange(number=number, rung=rung, cursor=self.study.cursor + 1)
        self.changes.promotions.append(change)

    def exploit(self, exploit: Exploit) -> None:
        """Give a trial that is about to continue another trial's state and a mutated configuration."""
        self.fold.policy.exploited(exploit)
        cursor = self.emit(events.trial_exploited(self.study.name, exploit))
        self.changes.exploits.append((exploit, cursor))
        copied: dict[str, Any] = {"params": exploit.params, "checkpoint": exploit.checkpoint}
        copied |= other_code.taken_over(self.trials[exploit.number], exploit.checkpoint)
        copied["step"] = min(self.trials[exploit.number].step, exploit.checkpoint.step)
        self.update(exploit.number, **copied, unread=None, not_before_s=None)

    def _note(self, before: Trial, after: Trial, cursor: int) -> None:
        self.trials[after.number] = after
        self.changes.trials.append(TrialChange(before=before, after=after, cursor=cursor))

    # --- leases --------------------------------------------------------------------------------------

    def lease(self, named: Leased) -> Lease | None:
        """Return the lease that an input speaks for, live or not, or None if its sender has no such lease.

        A worker speaks only for its own leases. If a grant has parts on several workers, its lease names the
        worker that speaks.
        """
        lease = self.leases.get(named.lease_id)
        if lease is None or lease.attempt != named.attempt or lease.number != named.number:
            return None
        if named.worker_id is not None and named.worker_id != lease.worker_id:
            return None
        return lease

    def is_fresh(self, lease: Lease, sequence: int | None) -> bool:
        """Whether a message is new; if so, record it as seen."""
        if sequence is None:
            return True
        if sequence <= lease.last_sequence:
            return False
        self.update_lease(lease, last_sequence=sequence)
        return True

    def give(self, lease: Lease, slots: tuple[Slot, ...]) -> None:
        """Start a lease with a new grant of these slots, or with none for a client."""
        if lease.grant is not None:
            self.changes.occupy(lease.grant)
        self._hold(lease, slots)

    def revive(self, lease: Lease, slots: tuple[Slot, ...]) -> None:
        """Start a lease on a grant that has just ended, on the slots that became free with it."""
        assert lease.grant is not None
        self.changes.revive(lease.grant)
        self._hold(lease, slots)

    def _hold(self, lease: Lease, slots: tuple[Slot, ...]) -> None:
        """Start a lease that is the only one of its grant, on free slots."""
        grant = lease.grant
        self.live += 1
        if grant is None:
            self._begin(lease, ())
            return
        self.grants[grant.id] = grant
        self._begin(lease, tuple(slot.part(grant.milli, grant.memory_bytes) for slot in slots))
        self._use(slots[0], grant, 1)
        for slot in slots:
            self._occupy(slot, grant)

    def join(self, lease: Lease, slots: tuple[Slot, ...]) -> None:
        """Start a further lease on a grant that others hold already: nothing more is charged."""
        assert lease.grant is not None
        grant = self.grants[lease.grant.id]
        self.grants[grant.id] = replace(grant, leases=grant.leases + 1)
        self._begin(lease, slots)

    def _begin(self, lease: Lease, slots: tuple[Slot, ...]) -> None:
        if self.study.standing.started_s is None:
            self.stand(started_s=self.study.now_s)
        self.leases[lease.id] = lease
        self.slots[lease.id] = slots
        self.changes.granted[lease.id] = lease
        if lease.grant is not None and lease.grant.seats > 1:
            self.bundles[lease.grant.id] = slots
        for slot in slots:
            self._fill_vacancy(slot, lease.number)

    def reclaim(self, lease: Lease) -> Lease:
        """Give a client its lapsed lease back, and undo the interruption too."""
        trial = self.trials[lease.number]
        assert trial.lapsed, "the caller has asked `gone.may_reclaim`"
        if lease.id not in self.changes.updated:  # else it lapsed in this very cycle
            self.changes.reclaimed.add(lease.id)
        self.live += 1
        lease = self.update_lease(lease, live=True, ended="")
        self.move(
            trial.number,
            Action.RECLAIM,
            lease_id=lease.id,
            detail=f"client '{lease.client_id}' reconnected, and no one else has taken the trial since",
            interruptions=max(0, trial.interruptions - 1),
            losses_in_row=max(0, trial.losses_in_row - 1),
        )
        return lease

    def close(self, lease: Lease) -> None:
        """Let no more trials join the bundle of a lease."""
        grant = self.grants[lease.grant.id] if lease.grant else None
        if grant is not None and grant.seats > 1 and not grant.closed:
            self.grants[grant.id] = replace(grant, closed=True)
            self.changes.closed_grants.append(grant.id)

    def release(self, lease: Lease, how: str) -> None:
        """End a lease. With the last one of its grant the slots are free from now on."""
        self.update_lease(lease, live=False, ended=how)
        self.wants_placement = True
        if lease.grant is None:
            self.live -= 1
            return
        grant = self.grants[lease.grant.id]
        self.grants[grant.id] = grant = replace(grant, leases=grant.leases - 1)
        slots = self.slots.get(lease.id, ())
        if grant.seats > 1:
            self.bundles[grant.id] = slots
        if grant.leases:
            return
        self.live -= 1
        self.changes.vacate(grant)
        if slots:
            self._use(slots[0], grant, -1)
        self.offer(slot for slot in slots if slot.placeable)

    def offer(self, slots: Iterable[Slot]) -> None:
        """Add free slots. The free part of a shared slot that is already there grows."""
        self.free = with_parts(self.free, slots)

    def offer_found(self, slots: Iterable[Slot]) -> None:
        """Add free slots of the rows, each only once."""
        new = [slot for slot in slots if (slot.worker_id, slot.index) not in self._found]
        self._found.update((slot.worker_id, slot.index) for slot in new)
        self.offer(new)

    def _occupy(self, slot: Slot, grant: Grant) -> None:
        for place, known in enumerate(self.free):
            if (known.worker_id, known.index) == (slot.worker_id, slot.index):
                rest = known.less(grant.milli, grant.memory_bytes)
                if rest.free_milli:
                    self.free[place] = rest
                else:
                    del self.free[place]
                return
        raise ValueError(f"slot {slot.index} of {slot.worker_name} is not free")

    def _use(self, slot: Slot, grant: Grant, sign: int) -> None:
        usage, now_s = self.study.standing.usage, self.study.now_s
        if grant.owner_stage:
            self.stand(usage=usage.hold_ephemeral(sign, now_s))
        else:
            self.stand(usage=usage.hold(slot.kind == "GPU", sign * grant.size, now_s))

    def update_lease(self, lease: Lease, **changes: Any) -> Lease:
        """Change a lease."""
        updated = replace(lease, **changes)
        self.leases[lease.id] = updated
        kept = self.changes.granted if lease.id in self.changes.granted else self.changes.updated
        kept[lease.id] = updated
        return updated

    def cancel(self, trial: Trial, why: str) -> None:
        """Tell a trial's worker that its lease is over."""
        if trial.lease_id is None:
            return
        lease = self.leases[trial.lease_id]
        if lease.worker_id is not None:
            self.orders.append(Cancellation(worker_id=lease.worker_id, lease=lease, reason=why))

    # --- the study and its log -----------------------------------------------------------------------

    def stand(self, **changes: Any) -> None:
        """Change the study's status in the cluster."""
        self.study = replace(self.study, standing=replace(self.study.standing, **changes))

    def ask_to_leave(self, grant_id: str, *, project: str, at_report: bool) -> None:
        """Ask the trials of a grant, of any study, to leave for this one: at their next report, or at their next
        rung.

        They learn its name if their `project` is this study's own.
        """
        who = f"study '{self.study.name}'" if project == self.study.project else "a study of another project"
        why = f"{who} needs its slots"
        self.changes.asks[grant_id] = Leaving(for_study_id=self.study.id, at_report=at_report, why=why)

    def give_up_reservation(self) -> None:
        """Cancel the reservation for a trial of the study."""
        self.stand(reserved=None)
        self.changes.withdraw_asks = True

    def learn_speed(self, lease: Lease, steps: int, seconds: float) -> None:
        """Record how long a trial trained on its grant."""
        kind = grant_kind(lease.model, len(lease.slots), lease.milli)
        self.stand(speeds=learn(self.study.standing.speeds, kind, steps, seconds))
        self.update(lease.number, speeds=learn(self.trials[lease.number].speeds, kind, steps, seconds))

    def move_study(self, state: StudyState, detail: str) -> None:
        """Move the study. Once it has ended, only `reopen_study` can move it."""
        if self.study.state is state or self.study.state.ended:
            return
        before = self.study.state
        self.study = replace(self.study, state=state, detail=detail)
        self.emit(events.study_moved(before, state, detail))

    def extend(self, spec: StudySpec) -> None:
        """Give the study a spec with more configurations, or a larger full budget."""
        before = self.study.spec
        planned = self.study.planned + spec.max_trials - before.max_trials
        self.study = replace(self.study, spec=spec, planned=planned)
        self.emit(events.study_extended(before, spec))

    def reopen_study(self, why: str) -> None:
        """Let an ended study continue. Trials that its end has not terminated yet continue as they are."""
        before, ended = self.study.state, self.study.end_time
        over_s = 0.0 if ended is None else max(0.0, (self.study.now - ended).total_seconds())
        self.study = replace(self.study, state=StudyState.ACTIVE, detail=why, end_time=None)
        self.stand(ended_through=None, over_s=self.study.standing.over_s + over_s)
        self.emit(events.study_moved(before, StudyState.ACTIVE, why))
        self.wants_placement = True

    def close_study(self, closing: Closing) -> None:
        """Close the study: it starts nothing more."""
        self.stand(closing=closing)

    def open_study(self) -> None:
        """Undo the closing of the study: what was asked of its trials no longer holds."""
        if self.study.closing is not None:
            self.stand(closing=None)
            self.changes.withdraw_asks = True

    def end_wait(self, scale: ScaleChoice | None) -> None:
        """Record that the study no longer waits for another one, and the scale that a pilot has chosen for its
        copies."""
        self.study = replace(self.study, after=None, scale_choice=scale)

    def emit(self, event: Event) -> int:
        """Append an event and return its cursor."""
        self.changes.events.append(event)
        self.study = replace(self.study, cursor=self.study.cursor + 1)
        return self.study.cursor

    def profile(self, device: str, key: str) -> Profile:
        """The study's bundle profile for a kind of device and a key."""
        return self.profiles.get((device, key)) or Profile(device=device, key=key)

    def learn_capacity(self, profile: Profile) -> None:
        """Store a bundle profile of the study."""
        if profile != self.profile(profile.device, profile.key):
            self.capacities.clear()
            self.profiles[profile.device, profile.key] = profile
            self.changes.profiles[profile.device, profile.key] = profile

    def explain(
        self,
        number: int,
        action: Ruling,
        explanation: Explanation,
        frees: Lease | None = None,
        *,
        said: str = "",
    ) -> None:
        """Append a decision, worded as `said` if that differs from the policy's sentence. The slots of `frees`
        become vacant with it, and the event will say who got them."""
        self.emit(events.decision_made(number, action.name, explanation, said or explanation.sentence))
        if frees is not None and frees.worker_id is not None:
            for index in frees.slots:
                at = self._vacancies.setdefault((frees.worker_id, index), [])
                at.append(len(self.changes.events) - 1)

    def _fill_vacancy(self, slot: Slot, number: int) -> None:
        left = self._vacancies.get((slot.worker_id, slot.index))
        if left:
            at, goes_to = left.pop(0), f"studies/{self.study.name}/trials/{number}"
            self.changes.events[at] = events.with_slot_goes_to(self.changes.events[at], goes_to)
