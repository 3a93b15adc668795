"""The pure core of a step: every rule of what an arrival changes.

No clock, no database, no randomness. The transaction gives the core copies of the rows that the arrivals
touch, calls `apply` for each arrival and then `place` until it asks for no more rows; the core collects what
changed in `changes` and whom to tell in `orders`. The simulator and the tests drive the same class.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import isfinite
from typing import assert_never

from headrace.errors import StudyEndedError, TrialEndedError, TrialNotFoundError
from headrace.spec import Goal
from headrace_services.scheduler import events
from headrace_services.scheduler.arrivals import (
    Accepted,
    Added,
    AddTrials,
    Arrival,
    Assignment,
    Cancellation,
    ExitedArrived,
    Kick,
    LeaseExpired,
    Order,
    Outcome,
    PauseStudy,
    PauseTrial,
    ReportArrived,
    RestoredArrived,
    ResumeStudy,
    ResumeTrial,
    Stale,
    StopStudy,
    StopTrial,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.lifecycle import Action, Reason, State, StudyState, next_state
from headrace_services.scheduler.policies import Action as Ruling
from headrace_services.scheduler.policies import Explanation, Promotion
from headrace_services.scheduler.records import (
    Decision,
    Event,
    Lease,
    Params,
    Report,
    RungEntry,
    Slot,
    Study,
    Trial,
)
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.changes import Changes, PromotionChange, RungChange, TrialChange
from headrace_services.scheduler.step.placement import place

LOOKAHEAD = 4
"""How many configurations to have ready beyond those that run, so that a freed slot never waits for a sampler."""

MAX_LOSSES_IN_ROW = 10
"""A program that is killed this often without one report between is taken to kill itself (out of memory)."""

MAX_EARLY_FAILURES = 3
"""A study whose first trials all fail before anything was reported cannot succeed."""


class StepCore:
    """One step of one study."""

    def __init__(self, study: Study, cache: StudyCache) -> None:
        self.study = study
        self.cache = cache
        self.changes = Changes()
        self.orders: list[Order] = []
        self.trials: dict[int, Trial] = {}
        self.leases: dict[str, Lease] = {}
        self.slots: dict[str, tuple[Slot, ...]] = {}
        self.free: list[Slot] = []
        self.queue: list[int] = []
        self.seats: list[tuple[int, Suggest]] = []
        self.suggested: dict[int, Suggested] = {}
        self.answers: dict[tuple[int, int, int], Decision] = {}
        self.live = 0
        self.held = 0
        self.wants_placement = False
        self._vacancies: dict[tuple[int, int], int] = {}

    # --- what the transaction loads ------------------------------------------------------------------

    def load(self, *, trials: Iterable[Trial] = (), leases: Iterable[Lease] = ()) -> None:
        """Take copies of rows, never replacing one that the step has changed."""
        for trial in trials:
            self.trials.setdefault(trial.number, trial)
        for lease in leases:
            self.leases.setdefault(lease.id, lease)

    def load_queue(self, trials: Iterable[Trial]) -> None:
        """Take copies of runnable trials and put all that are runnable now in order: interrupted ones first."""
        self.load(trials=trials)
        runnable = [trial for trial in self.trials.values() if trial.runnable]
        self.queue = [
            trial.number for trial in sorted(runnable, key=lambda trial: (trial.epoch == 0, trial.number))
        ]

    @property
    def active(self) -> bool:
        """Whether the study starts trials."""
        return self.study.state is StudyState.ACTIVE

    # --- arrivals ------------------------------------------------------------------------------------

    def apply(self, arrival: Arrival, *, seat: int = 0) -> Outcome | None:
        """Take one arrival in. Returns None for a Suggest, which `place` answers under its `seat`.

        Raises a HeadraceError where a user's command cannot be carried out; nothing has changed then.
        """
        match arrival:
            case ReportArrived():
                return self._report(arrival)
            case RestoredArrived():
                return self._restored(arrival)
            case ExitedArrived():
                return self._exited(arrival)
            case LeaseExpired():
                return self._expired(arrival)
            case Kick():
                self.wants_placement = True
            case Suggest():
                self.wants_placement = True
                self.seats.append((seat, arrival))
                return None
            case PauseStudy():
                self._require_live_study()
                self._move_study(StudyState.PAUSED, "paused by a user")
            case ResumeStudy():
                self._require_live_study()
                self._move_study(StudyState.ACTIVE, "resumed by a user")
                self.wants_placement = True
            case StopStudy():
                self._end_study(StudyState.STOPPED, arrival.reason or "stopped by a user")
            case AddTrials():
                self._require_live_study()
                self.wants_placement = True
                return Added(numbers=tuple(self._create(params).number for params in arrival.params))
            case PauseTrial():
                self._hold(arrival.number, held=True)
            case ResumeTrial():
                self._hold(arrival.number, held=False)
            case StopTrial():
                self._stop(arrival)
            case _:
                assert_never(arrival)
        return Accepted()

    def _report(self, arrival: ReportArrived) -> Outcome:
        lease = self._lease(arrival)
        if lease is None:
            return Stale()
        sequence = arrival.sequence if arrival.sequence is not None else lease.last_sequence + 1
        if sequence <= lease.last_sequence:
            known = self.answers.get((lease.number, lease.epoch, sequence))
            return Accepted(decision=known) if known else Stale()
        if not lease.live:
            return Stale()
        if self.trials[lease.number].state is State.RESUMED:
            self._move(lease.number, Action.RESTORED)
        progress = max(0, arrival.step - lease.step)
        lease = self._update_lease(lease, last_sequence=sequence, step=lease.step + progress)
        self._note_metrics(lease.number, arrival, progress)
        self._emit(events.report_recorded(lease, sequence, arrival))
        trial = self.trials[lease.number]
        if not self._at_milestone(trial, arrival.step, progress):
            decision = _go_on(trial.milestone or arrival.step, "before the next rung")
        elif self.study.metric_seen:
            decision = self._boundary(trial, lease, arrival)
        else:
            decision = self._unreported(arrival)
        self.answers[lease.number, lease.epoch, sequence] = decision
        self.changes.reports.append(
            Report(
                number=lease.number,
                epoch=lease.epoch,
                sequence=sequence,
                step=arrival.step,
                metrics=arrival.metrics,
                checkpoint=arrival.checkpoint,
                train_time_s=arrival.train_time_s,
                decision=decision,
            )
        )
        return Accepted(decision=decision)

    def _note_metrics(self, number: int, arrival: ReportArrived, progress: int) -> None:
        trial = self.trials[number]
        metric = self.study.spec.objective.metric
        value = arrival.metrics.get(metric)
        better = value is not None and isfinite(value) and self._better(value, trial.best_value)
        self.study = replace(
            self.study,
            reports=self.study.reports + 1,
            metric_seen=self.study.metric_seen or value is not None,
        )
        changed = replace(
            trial,
            steps_spent=trial.steps_spent + progress,
            best_value=value if better else trial.best_value,
            best_step=arrival.step if better else trial.best_step,
            checkpoint=arrival.checkpoint or trial.checkpoint,
            losses_in_row=0 if progress else trial.losses_in_row,
        )
        if progress:
            changed = replace(changed, step=arrival.step, value=value, metrics=arrival.metrics)
        self._change(trial, changed)

    def _at_milestone(self, trial: Trial, step: int, progress: int) -> bool:
        return progress > 0 and trial.milestone is not None and step >= trial.milestone

    def _boundary(self, trial: Trial, lease: Lease, arrival: ReportArrived) -> Decision:
        """Decide on a trial that has reached its milestone."""
        ladder = self.cache.policy.ladder(trial.bracket)
        done = arrival.step >= ladder[-1]
        if trial.baseline:
            if done:
                return self._complete(trial.number)
            return self._advance(trial, ladder, arrival.step, "the baseline runs to the end")
        recorded = self._record_rungs(trial, ladder, arrival)
        trial = self.trials[trial.number]
        if done:
            return self._complete(trial.number)
        if not recorded:
            return self._advance(trial, ladder, arrival.step, "recorded at this rung before")
        return self._judge(trial, lease, recorded[-1])

    def _record_rungs(self, trial: Trial, ladder: tuple[int, ...], arrival: ReportArrived) -> list[RungEntry]:
        entries = []
        value = arrival.metrics.get(self.study.spec.objective.metric)
        for rung in range(trial.rungs, len(ladder)):
            if ladder[rung] > arrival.step:
                break
            entry = RungEntry(
                number=trial.number,
                bracket=trial.bracket,
                rung=rung,
                milestone=ladder[rung],
                step=arrival.step,
                value=value,
                arrival=self.cache.next_arrival(trial.bracket, rung),
            )
            entries.append(entry)
        for entry in entries:
            self.cache.record(entry)
            cursor = self._emit(events.rung_recorded(entry))
            self.changes.rungs.append(RungChange(entry=entry, cursor=cursor))
        for entry in entries[:-1]:
            self._mark_promoted(entry.number, entry.bracket, entry.rung)
        if entries:
            self._change(trial, replace(trial, rungs=entries[-1].rung + 1))
        return entries

    def _judge(self, trial: Trial, lease: Lease, entry: RungEntry) -> Decision:
        verdict = self.cache.policy.verdict(trial.number, entry.bracket, entry.rung)
        held = trial.held or not self.active
        target = self.cache.policy.ladder(entry.bracket)[entry.rung + 1]
        if verdict.action is Ruling.STOP:
            self._explain(trial.number, Ruling.STOP, verdict.explanation, lease)
            self._terminate(trial.number, Reason.STOPPED_EARLY, verdict.explanation.sentence)
            return Decision(action="STOP", next_milestone=0, reason=verdict.explanation.sentence)
        promotion = self.cache.policy.next_promotion() if verdict.action is Ruling.PAUSE else None
        if verdict.action is Ruling.CONTINUE or (promotion is not None and promotion.trial == trial.number):
            explanation = promotion.explanation if promotion else verdict.explanation
            self._mark_promoted(trial.number, entry.bracket, entry.rung)
            if held:
                self._explain(trial.number, Ruling.PAUSE, explanation, lease)
                return self._leave(
                    trial.number, f"{explanation.sentence}; paused by a user", milestone=target
                )
            self._explain(trial.number, Ruling.CONTINUE, explanation)
            self._change(trial, replace(trial, milestone=target))
            return _go_on(target, explanation.sentence)
        self._explain(trial.number, Ruling.PAUSE, verdict.explanation, lease)
        return self._leave(trial.number, verdict.explanation.sentence, milestone=None)

    def _leave(self, number: int, why: str, *, milestone: int | None) -> Decision:
        """Take a trial off its worker, to be continued up to `milestone`, or when it is promoted."""
        if self.trials[number].checkpoint is None:
            why = f"{why}; it saved no checkpoint, so it will start from nothing when it is continued"
            self._move(number, Action.VACATE, detail=why, milestone=milestone)
        else:
            self._move(number, Action.PAUSE, detail=why, milestone=milestone)
        return Decision(action="PAUSE", next_milestone=0, reason=why)

    def _advance(self, trial: Trial, ladder: tuple[int, ...], step: int, why: str) -> Decision:
        target = next(level for level in ladder if level > step)
        self._change(trial, replace(trial, milestone=target))
        return _go_on(target, why)

    def _complete(self, number: int) -> Decision:
        why = f"reached the full budget of {self.study.spec.max_steps} steps"
        self._terminate(number, Reason.COMPLETED, why)
        return Decision(action="STOP", next_milestone=0, reason=why)

    def _unreported(self, arrival: ReportArrived) -> Decision:
        metric = self.study.spec.objective.metric
        names = ", ".join(sorted(arrival.metrics)) or "nothing"
        why = (
            f"the trials do not report the objective's metric '{metric}' but {names}; "
            "correct objective.metric or the trial's report(...)"
        )
        self._end_study(StudyState.FAILED, why)
        return Decision(action="STOP", next_milestone=0, reason=why)

    def _restored(self, arrival: RestoredArrived) -> Outcome:
        lease = self._lease(arrival)
        if lease is None or not lease.live:
            return Stale()
        if self._fresh(lease, arrival.sequence) and self.trials[lease.number].state is State.RESUMED:
            self._move(lease.number, Action.RESTORED)
        return Accepted()

    def _exited(self, arrival: ExitedArrived) -> Outcome:
        lease = self._lease(arrival)
        if lease is None or not lease.live:
            return Stale()
        if not self._fresh(lease, arrival.sequence):
            return Accepted()
        trial = self.trials[lease.number]
        if arrival.outcome in ("FAILED", "LOST") and arrival.log_tail:
            self._change(trial, replace(trial, log_tail=arrival.log_tail))
        match arrival.outcome:
            case "FINISHED":
                self._finished(lease.number)
            case "FAILED":
                self._failed(lease.number, arrival.error or "its program failed")
            case _:
                self._lost(
                    lease.number, arrival.error or "its process was lost", charged_after=MAX_LOSSES_IN_ROW
                )
        return Accepted()

    def _expired(self, arrival: LeaseExpired) -> Outcome:
        lease = self._lease(arrival)
        if lease is None or not lease.live:
            return Stale()
        self._lost(lease.number, arrival.why, charged_after=None)
        return Accepted()

    def _finished(self, number: int) -> None:
        trial = self.trials[number]
        metric = self.study.spec.objective.metric
        if metric in trial.metrics:
            self._terminate(number, Reason.COMPLETED, f"its program ended by itself at step {trial.step}")
        else:
            self._terminate(number, Reason.FAILED, f"its program ended without reporting '{metric}'")
            self._count_early_failure(trial)

    def _failed(self, number: int, error: str) -> None:
        trial = self.trials[number]
        failures = trial.failures + 1
        if failures > self.study.spec.max_retries:
            tries = f" (attempt {failures} of {failures})" if failures > 1 else ""
            self._terminate(number, Reason.FAILED, f"{error}{tries}", failures=failures)
        else:
            self._move(number, Action.RETRY, failures=failures, detail=error)
        self._count_early_failure(trial)

    def _count_early_failure(self, trial: Trial) -> None:
        if self.study.reports or trial.failures:
            return
        count = self.study.early_failures + 1
        self.study = replace(self.study, early_failures=count)
        if count >= MAX_EARLY_FAILURES:
            last = self.trials[trial.number].detail
            self._end_study(
                StudyState.FAILED,
                f"the first {count} trials failed before reporting anything; the last one: {last}",
            )

    def _lost(self, number: int, why: str, *, charged_after: int | None) -> None:
        trial = self.trials[number]
        losses = trial.losses_in_row + (charged_after is not None)
        if charged_after is not None and losses >= charged_after:
            detail = f"{why}, {losses} times in a row without a report between: is it out of memory?"
            self._terminate(number, Reason.FAILED, detail, losses_in_row=losses)
            return
        self._move(
            number, Action.INTERRUPT, interruptions=trial.interruptions + 1, losses_in_row=losses, detail=why
        )

    # --- commands ------------------------------------------------------------------------------------

    def _require_live_study(self) -> None:
        if self.study.state.ended:
            raise StudyEndedError(f"study '{self.study.name}' has ended ({self.study.state.lower()})")

    def _live_trial(self, number: int) -> Trial:
        trial = self.trials.get(number)
        if trial is None:
            raise TrialNotFoundError(f"study '{self.study.name}' has no trial {number}")
        if trial.state is State.TERMINATED:
            raise TrialEndedError(
                f"trial {number} of study '{self.study.name}' is over ({(trial.reason or '').lower()})"
            )
        return trial

    def _hold(self, number: int, *, held: bool) -> None:
        trial = self._live_trial(number)
        if trial.held != held:
            self._change(trial, replace(trial, held=held))
            self._emit(events.trial_held(number, held=held))
            self.held += 1 if held else -1
            self.wants_placement = True

    def _stop(self, arrival: StopTrial) -> None:
        trial = self._live_trial(arrival.number)
        why = arrival.reason or "stopped by a user"
        self._cancel(trial, why)
        self._terminate(trial.number, Reason.CANCELLED, why)

    def _cancel(self, trial: Trial, why: str) -> None:
        if trial.lease_id is None:
            return
        lease = self.leases[trial.lease_id]
        if lease.worker_id is not None:
            self.orders.append(Cancellation(worker_id=lease.worker_id, lease=lease, reason=why))

    def _move_study(self, state: StudyState, detail: str) -> None:
        if self.study.state is state:
            return
        before, self.study = self.study.state, replace(self.study, state=state, detail=detail)
        self._emit(events.study_moved(before, state, detail))

    def _end_study(self, state: StudyState, detail: str) -> None:
        """End the study. The transaction has loaded, or loads next, every live trial (`finish`)."""
        if not self.study.state.ended:
            self._move_study(state, detail)

    def finish(self) -> None:
        """Terminate what is left of a study that has ended, every live trial being loaded."""
        reason = Reason.STOPPED_EARLY if self.study.state is StudyState.COMPLETED else Reason.CANCELLED
        for trial in sorted(self.trials.values(), key=lambda trial: trial.number):
            if trial.state is not State.TERMINATED:
                waiting = "not promoted before the study was complete"
                detail = waiting if reason is Reason.STOPPED_EARLY else self.study.detail
                self._cancel(trial, detail)
                self._terminate(trial.number, reason, detail)

    # --- placement -----------------------------------------------------------------------------------

    def place(self) -> int | None:
        """Give free slots and waiting clients their next trials.

        Returns the number of a trial that must be loaded before it can go on, or None when it is done.
        """
        while self.active:
            if self.study.spec.max_parallel and self.live >= self.study.spec.max_parallel:
                break
            slots = self._next_slots()
            if slots is None:
                break
            job = self._next_job()
            if job is None:
                break
            number, promotion = job
            if number not in self.trials:
                return number
            if promotion is not None:
                self._promote(promotion)
            if not self.trials[number].held:
                self._launch(self.trials[number], slots)
        return None

    def settle(self) -> None:
        """See whether all is done, else make configurations ahead of need."""
        if self.active and self._complete_now():
            self._emit_completion()
        while self.active and len(self.queue) < LOOKAHEAD and self._create_next() is not None:
            pass

    def answer_seats(self) -> None:
        """Tell the clients that got no trial so."""
        for seat, _ in self.seats:
            self.suggested[seat] = Suggested(trial=None, lease=None, done=self.study.state.ended)
        self.seats.clear()

    def _complete_now(self) -> bool:
        return (
            self.live == 0
            and self.held == 0
            and not self.queue
            and self.cache.policy.next_promotion() is None
            and not self._more_to_create()
        )

    def _emit_completion(self) -> None:
        if self.study.metric_seen or not self.study.next_number:
            self._move_study(StudyState.COMPLETED, "nothing is left to run")
        else:
            self._move_study(StudyState.FAILED, f"no trial reported '{self.study.spec.objective.metric}'")

    def _next_slots(self) -> tuple[Slot, ...] | None:
        if self.study.spec.template is None:
            return () if self.seats else None
        return place(self.free, self.study.spec.resources)

    def _next_job(self) -> tuple[int, Promotion | None] | None:
        """What to run next: what was interrupted, then promotions, then new configurations."""
        if self.queue and self.trials[self.queue[0]].epoch:
            return self.queue[0], None
        promotion = self.cache.policy.next_promotion()
        if promotion is not None:
            return promotion.trial, promotion
        if not self.queue and self._create_next() is None:
            return None
        return self.queue[0], None

    def _promote(self, promotion: Promotion) -> None:
        trial = self.trials[promotion.trial]
        self._mark_promoted(trial.number, promotion.bracket, promotion.rung)
        self._change(trial, replace(trial, milestone=promotion.to_milestone))
        self._explain(trial.number, Ruling.CONTINUE, promotion.explanation)

    def _launch(self, trial: Trial, slots: tuple[Slot, ...]) -> None:
        if trial.number in self.queue:
            self.queue.remove(trial.number)
        epoch = trial.epoch + 1
        resume = trial.checkpoint if trial.state is State.PAUSED else None
        client = None if slots else self.seats.pop(0)
        lease = Lease(
            id=f"{self.study.uid}.{trial.number}.{epoch}",
            study_id=self.study.id,
            number=trial.number,
            epoch=epoch,
            worker_id=slots[0].worker_id if slots else None,
            incarnation=slots[0].incarnation if slots else "",
            client_id=client[1].client_id if client else "",
            ttl_s=client[1].ttl_s if client else None,
            slots=tuple(slot.index for slot in slots),
            step=resume.step if resume else 0,
            resume=resume,
        )
        self.leases[lease.id] = lease
        self.changes.granted[lease.id] = lease
        self.slots[lease.id] = slots
        self.changes.occupy(slots, lease)
        for slot in slots:
            self.free.remove(slot)
            self._fill_vacancy(slot, trial.number)
        self.live += 1
        action = Action.RESUME if trial.state is State.PAUSED else Action.LAUNCH
        log_path = f"{slots[0].log_dir}/{self.study.name}/{trial.number}.log" if slots else trial.log_path
        self._move(trial.number, action, epoch=epoch, lease_id=lease.id, log_path=log_path, detail="")
        moved = self.trials[trial.number]
        if client:
            self.suggested[client[0]] = Suggested(trial=moved, lease=lease, done=False)
        else:
            self.orders.append(Assignment(worker_id=slots[0].worker_id, trial=moved, lease=lease))

    # --- configurations ------------------------------------------------------------------------------

    def _more_to_create(self) -> bool:
        spec = self.study.spec
        if spec.baseline is not None and self.study.next_number == 0:
            return True
        return self.study.sampled < self.cache.sampled_limit

    def _create_next(self) -> Trial | None:
        spec = self.study.spec
        if spec.baseline is not None and self.study.next_number == 0:
            return self._create(spec.baseline, baseline=True)
        index = self.study.sampled
        if index >= self.cache.sampled_limit:
            return None
        if index < len(spec.enqueued):
            params: Params | None = spec.enqueued[index]
        else:
            params = self.cache.sampler.suggest(index - len(spec.enqueued))
        self.study = replace(self.study, sampled=index + 1)
        return self._create(params) if params is not None else None

    def _create(self, params: Params, *, baseline: bool = False) -> Trial:
        number = self.study.next_number
        bracket = 0 if baseline else self.cache.bracket(number)
        trial = Trial(
            study_id=self.study.id,
            number=number,
            params=dict(params),
            baseline=baseline,
            bracket=bracket,
            milestone=self.cache.policy.ladder(bracket)[0],
        )
        self.study = replace(self.study, next_number=number + 1)
        self.trials[number] = trial
        self.changes.created.append(trial)
        self.queue.append(number)
        self._emit(events.trial_created(trial))
        return trial

    # --- the moves themselves ------------------------------------------------------------------------

    def _move(self, number: int, action: Action, **changes: object) -> None:
        """Move a trial by the table, releasing its lease where it leaves its worker."""
        before = self.trials[number]
        state = next_state(before.state, action, checkpoint=before.checkpoint is not None)
        after = replace(before, state=state, **changes)  # type: ignore[arg-type]  # names are Trial's own
        lease = self.leases[before.lease_id] if before.lease_id else None
        if before.leased and not after.leased:
            after = replace(after, lease_id=None)
            assert lease is not None
            self._release(lease)
        slots = self.slots.get(after.lease_id or before.lease_id or "", ())
        cursor = self._emit(events.trial_moved(before, after, action, slots))
        self._change(before, after, cursor=cursor)

    def _terminate(self, number: int, reason: Reason, detail: str, **changes: object) -> None:
        before = self.trials[number]
        if before.held:
            self.held -= 1
        self._move(
            number, Action.TERMINATE, reason=reason, detail=detail, milestone=None, held=False, **changes
        )
        if number in self.queue:
            self.queue.remove(number)
        self.cache.policy.withdraw(number)
        self.wants_placement = True

    def _change(self, before: Trial, after: Trial, *, cursor: int | None = None) -> None:
        """Replace a copy and note the change."""
        if after == before:
            return
        self.trials[after.number] = after
        self.changes.trials.append(
            TrialChange(before=before, after=after, cursor=cursor or self.study.cursor)
        )

    def _release(self, lease: Lease) -> None:
        self._update_lease(lease, live=False)
        self.changes.vacate(lease)
        self.live -= 1
        self.wants_placement = True
        self.free.extend(slot for slot in self.slots.get(lease.id, ()) if slot.placeable)

    def _update_lease(self, lease: Lease, **changes: int) -> Lease:
        updated = replace(lease, **changes)  # type: ignore[arg-type]  # names are Lease's own
        self.leases[lease.id] = updated
        if lease.id in self.changes.granted:
            self.changes.granted[lease.id] = updated
        else:
            self.changes.updated[lease.id] = updated
        return updated

    def _lease(self, arrival: ReportArrived | RestoredArrived | ExitedArrived | LeaseExpired) -> Lease | None:
        lease = self.leases.get(arrival.lease_id)
        if lease is None or lease.epoch != arrival.epoch or lease.number != arrival.number:
            return None
        return lease

    def _fresh(self, lease: Lease, sequence: int | None) -> bool:
        if sequence is None:
            return True
        if sequence <= lease.last_sequence:
            return False
        self._update_lease(lease, last_sequence=sequence)
        return True

    def _mark_promoted(self, number: int, bracket: int, rung: int) -> None:
        self.cache.promoted(number, bracket, rung)
        self.changes.promotions.append(
            PromotionChange(number=number, rung=rung, cursor=self.study.cursor + 1)
        )

    def _explain(
        self, number: int, action: Ruling, explanation: Explanation, lease: Lease | None = None
    ) -> None:
        self._emit(events.decision_made(number, action.name, explanation))
        if lease is not None and lease.worker_id is not None:
            for index in lease.slots:
                self._vacancies[lease.worker_id, index] = len(self.changes.events) - 1

    def _fill_vacancy(self, slot: Slot, number: int) -> None:
        """Say in the decision that freed a slot which trial got it."""
        at = self._vacancies.pop((slot.worker_id, slot.index), None)
        if at is not None:
            goes_to = f"studies/{self.study.name}/trials/{number}"
            self.changes.events[at] = events.with_slot_goes_to(self.changes.events[at], goes_to)

    def _emit(self, event: Event) -> int:
        self.changes.events.append(event)
        self.study = replace(self.study, cursor=self.study.cursor + 1)
        return self.study.cursor

    def _better(self, value: float, than: float | None) -> bool:
        if than is None:
            return True
        return value > than if self.study.spec.objective.goal is Goal.MAXIMIZE else value < than


def _go_on(milestone: int, reason: str) -> Decision:
    return Decision(action="CONTINUE", next_milestone=milestone, reason=reason)
