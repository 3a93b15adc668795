"""Replay a study's event log through one policy on one thread, and compare every decision.

A scheduler makes decisions in cycles that several replicas run concurrently, from caches that catch up with each
other, through kills and outages. The event log has their decisions in commit order. Here the log's results go into
a new policy, one after the other, and the policy is asked the same questions at the same places:

- what a trial may do after it was recorded at a rung (the verdict, or its own promotion);
- which trial is promoted when a slot is free, and what it copies from another one;
- and, when a trial was started for the first time, whether another one should have been promoted instead.

An answer that differs in any value (the trial, the action, the rank, the cutoff) is a `Difference`. If only the
sentence differs, it is counted separately, since another version may have worded it differently. The log is the
only input: no table, no cache, no clock.

If trials were reopened, or the study was extended, a new policy is given everything that was folded in before,
except the ends of the reopened trials (`core.reopening`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import structs

from headrace.client import Client
from headrace.client.events import (
    Action,
    DecisionMade,
    Event,
    PausePrice,
    ProposalsEnded,
    ReportRecorded,
    RungRecorded,
    StudyExtended,
    TrialCreated,
    TrialExploited,
    TrialMoved,
)
from headrace.client.events import Explanation as Logged
from headrace.client.model import Checkpoint as LoggedCheckpoint
from headrace.client.model import Exploit as LoggedExploit
from headrace.client.model import TerminationReason, TrialState
from headrace.errors import HeadraceError
from headrace.spec import StudySpec
from headrace.spec.scalars import Value
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.lifecycle import AT_ITS_END, BY_USER, WITH_STUDY, Reason
from headrace_services.scheduler.core.policies import Action as Ruling
from headrace_services.scheduler.core.policies import Explanation, Policy, Promotion, RungCost
from headrace_services.scheduler.core.policies import PausePrice as Price
from headrace_services.scheduler.core.records import Checkpoint, Exploit, RungEntry
from headrace_services.scheduler.samplers import make_sampler

_NOT_THE_POLICYS = (BY_USER, WITH_STUDY, AT_ITS_END)
_LOGGED = {field.name for field in dataclasses.fields(Logged)}
_COMPARED = tuple(field.name for field in structs.fields(Explanation) if field.name in _LOGGED - {"sentence"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A place where the log and the replay disagree."""

    cursor: int
    trial: int
    logged: str
    replayed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of a replay."""

    events: int
    decisions: int
    """Decisions in the log, each of which was compared."""
    starts: int
    """First starts of trials, each of which was checked against the promotions that were possible."""
    reworded: int
    """Decisions that are the same, worded differently."""
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        """Whether the log has throughout the decisions of a single thread."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class _Answer:
    trial: int
    action: Action
    explanation: Explanation
    exploit: Exploit | None = None

    def __str__(self) -> str:
        return f"trial {self.trial}: {self.action}: {self.explanation.sentence}"


class Replay:
    """One study's log, event by event, in the order of the cursor."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec.as_created()
        self._fold: Fold | None = None
        """None if the facts must be folded into a new policy."""
        self._folded: list[Callable[[Fold], None] | None] = []
        """All facts that were folded in; None in place of an end that was undone."""
        self._ends: dict[int, int] = {}
        """The index there of the end of each trial that is over."""
        self._last_entries: dict[int, RungEntry] = {}
        """The entries of trials that ended at the rung where they were recorded, without a decision."""
        self._more = True
        """Whether the sampler had configurations left."""
        self._unstarted: set[int] = set()
        self._params: dict[int, dict[str, Value]] = {}
        """The parameters with which each trial was created."""
        self._saved: dict[int, LoggedCheckpoint | None] = {}
        """The checkpoint of each trial's last report."""
        self._unjudged: dict[int, list[RungEntry]] = {}
        """The rung entries of a trial's report, until the decision on it."""
        self._stayed: dict[int, tuple[int, _Answer]] = {}
        """Trials that may continue by the policy but were paused: a user asked for it, or their study was paused."""
        self._exploits: dict[int, Exploit] = {}
        """What a trial is about to copy, until the log says that it did."""
        self._differences: list[Difference] = []
        self._cursor = 0
        self._decisions = 0
        self._starts = 0
        self._reworded = 0

    def apply(self, event: Event) -> None:
        """Fold in one event. Raises ValueError if events are missing."""
        if event.cursor != self._cursor + 1:
            raise ValueError(f"event {event.cursor} follows event {self._cursor}: the log has a gap")
        self._cursor = event.cursor
        match event.detail:
            case ProposalsEnded():
                self._more = False
            case StudyExtended() as extended:
                self._spec = self._spec.extended_to(trials=extended.trials, steps=extended.steps)
                self._more |= extended.trials > extended.trials_before
                self._fold = None
            case _:
                pass
        if event.trial is None:
            return
        match event.detail:
            case TrialCreated() as created:
                self._created(event.trial, created)
            case ReportRecorded() as report:
                self._saved[event.trial] = report.checkpoint
            case RungRecorded() as recorded:
                self._recorded(event.trial, recorded)
            case DecisionMade() as made:
                self._decided(event.trial, made)
            case TrialExploited() as exploited:
                self._exploited(event.trial, exploited.exploit)
            case TrialMoved() as moved:
                self._moved(event.trial, moved)
            case _:
                pass

    def result(self) -> Replayed:
        """The result so far."""
        return Replayed(
            events=self._cursor,
            decisions=self._decisions,
            starts=self._starts,
            reworded=self._reworded,
            differences=tuple(self._differences),
        )

    # The log's events.

    def _created(self, trial: int, created: TrialCreated) -> None:
        self._unstarted.add(trial)
        params = self._params[trial] = dict(created.params)
        self._fold_in(lambda fold: fold.joined(trial, created.bracket, params, baseline=created.baseline))

    def _recorded(self, trial: int, recorded: RungRecorded) -> None:
        result = recorded.result
        arrival = self._study.next_arrival(recorded.bracket, result.rung)
        if result.arrival != arrival:
            self._differ(trial, f"arrival {result.arrival} at the rung", f"arrival {arrival}")
        saved = self._saved.get(trial) if self._spec.shares_checkpoints else None
        entry = RungEntry(
            number=trial,
            bracket=recorded.bracket,
            rung=result.rung,
            milestone=result.milestone,
            step=result.step,
            value=result.value,
            arrival=result.arrival,
            checkpoint=None if saved is None else _checkpoint(saved),
            cost=RungCost(**dataclasses.asdict(result.cost)) if result.cost else None,
        )
        self._fold_in(lambda fold: fold.record(entry))
        self._unjudged.setdefault(trial, []).append(entry)

    def _decided(self, trial: int, made: DecisionMade) -> None:
        self._decisions += 1
        entries = self._crossed(trial)
        answer = self._judge(entries[-1]) if entries else self._promotion()
        logged = f"trial {trial}: {made.action}: {made.explanation.sentence}"
        goes_on = made.action is Action.CONTINUE
        if answer is None:
            self._differ(trial, logged, "no trial may be promoted")
        elif answer.trial != trial or not _same(made.explanation, answer.explanation):
            self._differ(trial, logged, str(answer))
        elif made.action is Action.PAUSE and answer.exploit is not None:
            goes_on = True  # it leaves its slot for another trial's state
        elif made.action is Action.PAUSE and answer.action is Action.CONTINUE:
            goes_on = True
            self._stayed[trial] = (self._cursor, answer)
        elif made.action is not answer.action:
            self._differ(trial, logged, str(answer))
        elif made.explanation.sentence != answer.explanation.sentence:
            self._reworded += 1
        if goes_on:
            self._promoted(trial, made.explanation.bracket, made.explanation.rung)
            if answer is not None and answer.exploit is not None:
                self._exploits[trial] = answer.exploit

    def _exploited(self, trial: int, logged: LoggedExploit) -> None:
        exploit = self._exploits.pop(trial, None)
        said = f"trial {trial} took over trial {logged.donor} as {dict(logged.params)}"
        if exploit is None:
            self._differ(trial, said, "nothing is to be taken over")
            return
        if (logged.donor, dict(logged.params)) != (exploit.donor, exploit.params):
            self._differ(trial, said, f"trial {trial} takes over trial {exploit.donor} as {exploit.params}")
        self._fold_in(lambda fold: fold.policy.exploited(exploit))

    def _moved(self, trial: int, moved: TrialMoved) -> None:
        if trial in self._stayed:
            cursor, answer = self._stayed.pop(trial)
            if not _was_paused(moved.detail) and moved.reason is not TerminationReason.CANCELLED:
                self._differ(trial, f"trial {trial}: {Action.PAUSE} (event {cursor})", str(answer))
        if moved.to_state is TrialState.TERMINATED:
            self._unstarted.discard(trial)
            entries = self._crossed(trial)  # a trial that has had its full budget ends without a decision
            if entries:
                self._last_entries[trial] = entries[-1]
            self._ends[trial] = len(self._folded)
            assert moved.reason is not None
            reason = Reason(moved.reason.name)
            self._fold_in(lambda fold: fold.ended(trial, reason))
        elif moved.action == "reopen":
            self._reopened(trial, moved)
        elif moved.action == "launch" and trial in self._unstarted:
            self._starts += 1
            self._unstarted.discard(trial)
            promotion = None if self._policy.new_trials_first else self._promotion()
            if promotion is not None and not self._may_wait(promotion, trial):
                self._differ(trial, f"trial {trial} was started", str(promotion))

    def _may_wait(self, promotion: _Answer, started: int) -> bool:
        """Whether a promotion may wait while this trial starts: no trial runs to the last rung in bubbles
        (`core.ephemeral_slots`), and a seat in a bundle is only for trials with equal values of `fuse.apart`."""
        fuse = self._spec.fuse
        if fuse is not None and fuse.key(self._params[promotion.trial]) != fuse.key(self._params[started]):
            return True
        ladder = self._policy.ladder(promotion.explanation.bracket)
        return self._spec.bubbles and promotion.explanation.rung + 2 >= len(ladder)

    def _reopened(self, trial: int, moved: TrialMoved) -> None:
        self._folded[self._ends.pop(trial)] = None
        self._fold = None
        if not moved.attempt:
            self._unstarted.add(trial)
        if trial in self._last_entries:
            self._unjudged[trial] = [self._last_entries.pop(trial)]

    # Folding in.

    @property
    def _study(self) -> Fold:
        if self._fold is None:
            self._fold = Fold.empty(self._spec, make_sampler(self._spec))
            for change in filter(None, self._folded):
                change(self._fold)
        return self._fold

    @property
    def _policy(self) -> Policy:
        return self._study.policy

    def _fold_in(self, change: Callable[[Fold], None]) -> None:
        """Fold in a fact, now and whenever the policy is rebuilt."""
        change(self._study)
        self._folded.append(change)

    def _promoted(self, trial: int, bracket: int, rung: int) -> None:
        self._fold_in(lambda fold: fold.policy.promoted(trial, bracket, rung))

    # The policy's answers.

    def _crossed(self, trial: int) -> list[RungEntry]:
        """Take the entries since the trial's last decision; it is past all of these rungs except the highest."""
        entries = self._unjudged.pop(trial, [])
        for entry in entries[:-1]:
            self._promoted(trial, entry.bracket, entry.rung)
        return entries

    def _judge(self, entry: RungEntry) -> _Answer:
        verdict = self._policy.verdict(entry.number, entry.bracket, entry.rung, more=self._more)
        waits = self._policy.new_trials_first and self._unstarted
        if verdict.action is Ruling.PAUSE and not waits:
            promotion = self._promotion()
            if promotion is not None and promotion.trial == entry.number:
                return promotion
        return _Answer(entry.number, Action(verdict.action.value), verdict.explanation)

    def _promotion(self) -> _Answer | None:
        found: Promotion | None = self._policy.next_promotion(more=self._more)
        if found is None:
            return None
        return _Answer(found.trial, Action.CONTINUE, found.explanation, found.exploit)

    def _differ(self, trial: int, logged: str, replayed: str) -> None:
        self._differences.append(
            Difference(cursor=self._cursor, trial=trial, logged=logged, replayed=replayed)
        )


def replay(spec: StudySpec, events: Iterable[Event]) -> Replayed:
    """Replay a log from its first event."""
    playing = Replay(spec)
    for event in events:
        playing.apply(event)
    return playing.result()


def replay_study(client: Client, name: str) -> Replayed:
    """Replay a study up to its last event now. Raises HeadraceError if events were deleted by age."""
    study = client.study(name)
    info = study.status()
    playing, last = Replay(info.spec), 0
    for event in study.events(until=info.cursor):
        if event.cursor != last + 1:
            break
        playing.apply(event)
        last = event.cursor
    if last != info.cursor:
        raise HeadraceError(
            f"Study {name} cannot be replayed: events of it were deleted by age.",
            remedy="A study can be replayed until the scheduler's age limit for events has passed since its end.",
        )
    return playing.result()


def _checkpoint(logged: LoggedCheckpoint) -> Checkpoint:
    return Checkpoint(
        uri=logged.uri,
        step=logged.step,
        size_bytes=logged.size_bytes,
        manifest_sha256=logged.manifest_sha256,
        write_time_s=logged.write_time_s or 0.0,
    )


def _was_paused(detail: str) -> bool:
    """Whether a trial that the policy let continue was paused for another reason."""
    return any(why in detail for why in _NOT_THE_POLICYS)


def _same(logged: Logged, made: Explanation) -> bool:
    return all(_equal(getattr(logged, name), getattr(made, name)) for name in _COMPARED)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, PausePrice) and isinstance(other, Price):
        return dataclasses.asdict(one) == {
            **structs.asdict(other),
            "price_s": other.price_s,
            "pays": other.pays,
        }
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other
