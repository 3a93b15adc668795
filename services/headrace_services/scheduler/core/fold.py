"""What a replica keeps of a study between cycles: the policy with every rung result folded in.

It is a cache and never authoritative: `cursor` is the last event of the study that it includes. The engine brings
it up to date from the rows before each cycle, and drops it when a cycle fails.
"""

from collections import Counter
from dataclasses import dataclass, field

from headrace.spec import StudySpec
from headrace.spec.grid import Point
from headrace.spec.repeats import distinct_trials
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.policies import Policy, RungResult, make_policy
from headrace_services.scheduler.core.records import Params, RungEntry
from headrace_services.scheduler.core.sampling import Points, Sampler, pooled_from

_WITHOUT_FAILURE = frozenset({Reason.COMPLETED, Reason.STOPPED_EARLY})


@dataclass(slots=True)
class Fold:
    """The folded state of one study."""

    spec: StudySpec
    policy: Policy
    sampler: Sampler
    pooled_from: int | None = None
    """Proposals from this number on come from the pool; None if all are made in the cycle."""
    revision: int = 0
    """The study's revision when the fold was made. The fold is void at any other one."""
    cursor: int = 0
    next_number: int = 0
    """The number after the last trial that the policy knows."""
    points: Points | None = None
    """The points of a finite space, each tried once before any is repeated; None for a continuous space."""
    tried: set[Point] = field(default_factory=set)
    """The points of the trials so far, except the baseline's."""
    _arrivals: Counter[tuple[int, int]] = field(default_factory=Counter)

    @classmethod
    def empty(
        cls, spec: StudySpec, sampler: Sampler, *, revision: int = 0, points: Points | None = None
    ) -> "Fold":
        """Return the fold of a study in which nothing has happened yet."""
        pooled = pooled_from(spec)
        return cls(
            spec=spec,
            policy=make_policy(spec),
            sampler=sampler,
            pooled_from=pooled,
            revision=revision,
            points=points,
        )

    @property
    def sampled_limit(self) -> int:
        """How many configurations there will be, including enqueued ones and without the baseline."""
        size = self.sampler.size
        if size is None:
            return self.spec.max_trials
        enqueued = self.spec.enqueued
        if self.points is None:  # a study may try a point twice: those of the grid come on top
            return min(self.spec.max_trials, len(enqueued) + size)
        return min(self.spec.max_trials, distinct_trials(enqueued, size, self.points.point))

    def points_left(self, sampled: int, limit: int) -> int | None:
        """How many configurations are left after the first `limit`, of which `sampled` already exist; None if the
        space sets no limit."""
        size, enqueued = self.sampler.size, self.spec.enqueued
        if size is None:
            return None
        if self.points is None:
            return len(enqueued) + size - limit
        coming = enqueued[sampled:limit]
        theirs = {self.points.point(params) for params in coming} - {None}  # those off the grid use up none
        proposals = max(0, limit - max(sampled, len(enqueued)))
        return size - len(self.tried | theirs) - proposals

    def propose(self, number: int) -> Params | None:
        """The sampler's proposal, or an untried point if that one was tried; None if there are no more."""
        params = self.sampler.suggest(number)
        if self.points is None or (params is not None and not self.was_tried(params)):
            return params
        fresh = self.points.untried(number, self.tried)
        return params if fresh is None and self.sampler.size is None else fresh

    def instead(self, number: int, params: Params) -> Params:
        """A model's proposal, or an untried point near it if that one was tried."""
        if self.points is None or not self.was_tried(params):
            return params
        return self.points.untried(number, self.tried, params) or params

    def was_tried(self, params: Params) -> bool:
        """Whether a trial has this point."""
        return self.points is not None and self.points.point(params) in self.tried

    def bracket(self, number: int) -> int:
        """Return the bracket of trial `number`, which depends only on the study's seed and the number."""
        return self.policy.bracket(number)

    def next_arrival(self, bracket: int, rung: int) -> int:
        """Count the next result at a rung, and return its position."""
        self._arrivals[bracket, rung] += 1
        return self._arrivals[bracket, rung]

    @property
    def is_empty(self) -> bool:
        """Whether there is no result at any rung yet."""
        return not any(self._arrivals.values())

    def joined(self, number: int, bracket: int, params: Params, *, baseline: bool) -> None:
        """Fold in a new trial; the baseline runs outside the policy."""
        self.next_number = number + 1
        if not baseline:
            if self.points is not None and (point := self.points.point(params)) is not None:
                self.tried.add(point)
            self.policy.joined(number, bracket, params)

    def record(self, entry: RungEntry) -> None:
        """Fold in a rung result."""
        self._arrivals[entry.bracket, entry.rung] = entry.arrival
        self.policy.record(
            RungResult(
                trial=entry.number,
                bracket=entry.bracket,
                rung=entry.rung,
                milestone=entry.milestone,
                step=entry.step,
                value=entry.value,
                arrival=entry.arrival,
                checkpoint=entry.checkpoint,
                cost=entry.cost if self.spec.prices_pauses else None,
            )
        )

    def ended(self, number: int, reason: Reason) -> None:
        """Fold in the end of a trial."""
        if reason in _WITHOUT_FAILURE:
            self.policy.finished_early(number)
        self.policy.withdraw(number)

    def promoted(self, number: int, bracket: int, rung: int) -> None:
        """Fold in a promotion past a rung."""
        self.policy.promoted(number, bracket, rung)
