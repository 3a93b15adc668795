"""Plays a study's event log again, through one policy on one thread, and compares every decision.

A scheduler takes decisions in steps that several replicas run side by side, from caches that catch up with each
other, through kills and outages. The event log says what they decided, in commit order. Here the log's results go
into a new policy, one after the other, and the policy is asked the same questions at the same places:

- what a trial may do that was just recorded at a rung (the verdict, or its own promotion);
- which trial is promoted when a slot is free;
- and, where a trial that never ran was started, that no other one could have been promoted instead.

An answer that differs in anything (the trial, the action, the rank, the cutoff, the sentence) is a `Difference`.
The log is the only input: no table, no cache, no clock.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from headrace.client import Client
from headrace.client.events import (
    Action,
    DecisionMade,
    Event,
    PausePrice,
    ProposalsEnded,
    RungRecorded,
    TrialCreated,
    TrialMoved,
)
from headrace.client.events import Explanation as Logged
from headrace.client.model import TerminationReason, TrialState
from headrace.spec import StudySpec
from headrace_services.scheduler.policies import Action as Ruling
from headrace_services.scheduler.policies import Explanation, Promotion, RungCost, RungResult, make_policy
from headrace_services.scheduler.policies import PausePrice as Price

_BY_USER = "paused by a user"
_COMPARED = tuple(field.name for field in fields(Explanation))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A place where the log and the replay disagree."""

    cursor: int
    trial: int
    logged: str
    replayed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found."""

    events: int
    decisions: int
    """Decisions in the log, each of which was compared."""
    starts: int
    """First starts of trials, each of which was checked against the promotions that were possible."""
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        """Whether the log says throughout what a single thread would have decided."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class _Answer:
    trial: int
    action: Action
    explanation: Explanation

    def __str__(self) -> str:
        return f"trial {self.trial}: {self.action}: {self.explanation.sentence}"


class Replay:
    """One study's log, event by event, in the order of the cursor."""

    def __init__(self, spec: StudySpec) -> None:
        self._policy = make_policy(spec)
        self._arrivals: Counter[tuple[int, int]] = Counter()
        self._unjudged: dict[int, list[RungResult]] = {}
        """What a report recorded for a trial, until the decision on it."""
        self._stayed: dict[int, tuple[int, _Answer]] = {}
        """Trials that may go on by the policy and were paused: a user must have asked for it."""
        self._differences: list[Difference] = []
        self._more = True
        """Whether the sampler had configurations left."""
        self._cursor = 0
        self._decisions = 0
        self._starts = 0

    def take(self, event: Event) -> None:
        """Fold one event in. Raises ValueError where events are missing."""
        if event.cursor != self._cursor + 1:
            raise ValueError(f"event {event.cursor} follows event {self._cursor}: the log has a gap")
        self._cursor = event.cursor
        if isinstance(event.detail, ProposalsEnded):
            self._more = False
        if event.trial is None:
            return
        match event.detail:
            case TrialCreated() as created:
                if not created.baseline:
                    self._policy.joined(event.trial, created.bracket, dict(created.params))
            case RungRecorded() as recorded:
                self._record(event.trial, recorded)
            case DecisionMade() as made:
                self._decided(event.trial, made)
            case TrialMoved() as moved:
                self._moved(event.trial, moved)
            case _:
                pass

    def result(self) -> Replayed:
        """What was found so far."""
        return Replayed(
            events=self._cursor,
            decisions=self._decisions,
            starts=self._starts,
            differences=tuple(self._differences),
        )

    def _record(self, trial: int, recorded: RungRecorded) -> None:
        result = recorded.result
        place = (recorded.bracket, result.rung)
        self._arrivals[place] += 1
        if result.arrival != self._arrivals[place]:
            self._differ(trial, f"arrival {result.arrival} at the rung", f"arrival {self._arrivals[place]}")
        entry = RungResult(
            trial=trial,
            bracket=recorded.bracket,
            rung=result.rung,
            milestone=result.milestone,
            step=result.step,
            value=result.value,
            arrival=result.arrival,
            cost=RungCost(**asdict(result.cost)) if result.cost else None,
        )
        self._policy.record(entry)
        self._unjudged.setdefault(trial, []).append(entry)

    def _decided(self, trial: int, made: DecisionMade) -> None:
        self._decisions += 1
        entries = self._crossed(trial)
        answer = self._judge(entries[-1]) if entries else self._promotion()
        logged = f"trial {trial}: {made.action}: {made.explanation.sentence}"
        if answer is None:
            self._differ(trial, logged, "no trial may be promoted")
        elif answer.trial != trial or not _same(made.explanation, answer.explanation):
            self._differ(trial, logged, str(answer))
        elif made.action is Action.PAUSE and answer.action is Action.CONTINUE:
            self._stayed[trial] = (self._cursor, answer)
        elif made.action is not answer.action:
            self._differ(trial, logged, str(answer))
        if made.action is Action.CONTINUE or trial in self._stayed:
            self._policy.promoted(trial, made.explanation.bracket, made.explanation.rung)

    def _moved(self, trial: int, moved: TrialMoved) -> None:
        if trial in self._stayed:
            cursor, answer = self._stayed.pop(trial)
            if _BY_USER not in moved.detail and moved.reason is not TerminationReason.CANCELLED:
                self._differ(trial, f"trial {trial}: {Action.PAUSE} (event {cursor})", str(answer))
        if moved.to_state is TrialState.TERMINATED:
            self._crossed(trial)  # one that has had its full budget ends without a decision
            self._policy.withdraw(trial)
        elif moved.action == "launch" and moved.epoch == 1:
            self._starts += 1
            promotion = self._policy.next_promotion(more=self._more)
            if promotion is not None:
                self._differ(trial, f"trial {trial} was started", str(_promoted(promotion)))

    def _crossed(self, trial: int) -> list[RungResult]:
        """Take what was recorded since the trial's last decision; it is past all of these rungs but the highest."""
        entries = self._unjudged.pop(trial, [])
        for entry in entries[:-1]:
            self._policy.promoted(trial, entry.bracket, entry.rung)
        return entries

    def _judge(self, entry: RungResult) -> _Answer:
        verdict = self._policy.verdict(entry.trial, entry.bracket, entry.rung, more=self._more)
        if verdict.action is Ruling.PAUSE:
            promotion = self._policy.next_promotion(more=self._more)
            if promotion is not None and promotion.trial == entry.trial:
                return _promoted(promotion)
        return _Answer(entry.trial, Action(verdict.action.value), verdict.explanation)

    def _promotion(self) -> _Answer | None:
        promotion = self._policy.next_promotion(more=self._more)
        return _promoted(promotion) if promotion else None

    def _differ(self, trial: int, logged: str, replayed: str) -> None:
        self._differences.append(
            Difference(cursor=self._cursor, trial=trial, logged=logged, replayed=replayed)
        )


def replay(spec: StudySpec, events: Iterable[Event]) -> Replayed:
    """Replay a log from its first event on."""
    playing = Replay(spec)
    for event in events:
        playing.take(event)
    return playing.result()


def replay_study(client: Client, name: str) -> Replayed:
    """Replay a study, up to the event that is its last one now."""
    study = client.study(name)
    info = study.status()
    playing = Replay(info.spec)
    if info.cursor:
        for update in study.watch():
            for event in update.events:
                if event.cursor <= info.cursor:
                    playing.take(event)
            if update.events and update.events[-1].cursor >= info.cursor:
                break
    return playing.result()


def _promoted(promotion: Promotion) -> _Answer:
    return _Answer(promotion.trial, Action.CONTINUE, promotion.explanation)


def _same(logged: Logged, made: Explanation) -> bool:
    return all(_equal(getattr(logged, name), getattr(made, name)) for name in _COMPARED)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, PausePrice) and isinstance(other, Price):
        return asdict(one) == {**asdict(other), "price_s": other.price_s, "pays": other.pays}
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other
