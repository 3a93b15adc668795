"""The protocol of a policy: results in, verdicts and promotions out.

A policy is a pure, single-threaded fold. The core feeds it results and moves (`joined`, `record`, `promoted`,
`withdraw`), and asks it questions (`verdict`, `next_promotion`), which change nothing. So a policy rebuilt from
the event log by the same calls is in the same state and gives the same answers. It has no clock and no I/O. Its
random draws depend only on the study's seed, the trial and the rung.

`joined` is called in the order of the trials' numbers, the other folds in commit order. A rebuilt policy is given
all trials first, so nothing may depend on what had been recorded when a trial joined. The baseline never joins.

Both questions say whether there is `more`: configurations that the sampler has not proposed yet. If there are
none, a synchronous policy decides on a cohort that can no longer fill up.

Rungs are numbered from 0 within their bracket: `ladder(bracket)[rung]` is the milestone. At the last one the trial
has had its full budget, and the core completes it without asking.

A report that crosses several milestones is recorded at all of them, lowest first, and the policy is asked for a
verdict at the highest. After a PAUSE the core asks for `next_promotion`. If that is the trial itself, it continues
without leaving its slot.
"""

import math
from enum import Enum
from typing import Protocol

from msgspec import Struct

from headrace_services.scheduler.core.records import Checkpoint, Exploit, Params, RungCost


class RungResult(Struct, frozen=True, kw_only=True):
    """One trial's entry at one rung. A value of None means that the metric is missing."""

    trial: int
    bracket: int
    rung: int
    milestone: int
    step: int
    value: float | None
    arrival: int
    cost: RungCost | None = None
    checkpoint: Checkpoint | None = None
    """The checkpoint saved with the report; only for a policy that shares checkpoints."""

    @property
    def finite(self) -> bool:
        """Whether the value can be ranked; all others rank last and are never kept."""
        return self.value is not None and math.isfinite(self.value)


class PausePrice(Struct, frozen=True, kw_only=True):
    """What a pause costs and what it is worth, in seconds; see `pricing`."""

    checkpoint_bytes: int
    write_s: float
    read_s: float
    rung_s: float
    """Training time to the next rung."""
    rest_s: float
    """Training time to the full budget."""
    promotion_probability: float
    worth_s: float

    @property
    def price_s(self) -> float:
        """The time of a write and a read."""
        return self.write_s + self.read_s

    @property
    def pays(self) -> bool:
        """Whether the slot's next best use is worth more than the pause costs."""
        return self.worth_s > self.price_s


class Action(Enum):
    """What a trial must do after a result."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


class Explanation(Struct, frozen=True, kw_only=True):
    """The reason of a decision: the rule, the values compared, and the outcome in one sentence with its figures."""

    rule: str
    bracket: int
    rung: int
    milestone: int
    value: float | None
    rank: int
    results: int
    kept: int
    cutoff_value: float | None
    sentence: str
    pause_price: PausePrice | None = None
    expected_value: float | None = None
    """For an extrapolated curve: the value expected at the full budget. Its spread is one standard deviation."""
    expected_spread: float | None = None
    probability: float | None = None
    """The probability that the trial beats the best value."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What a trial may do that was recorded at a rung."""

    action: Action
    explanation: Explanation


class Promotion(Struct, frozen=True, kw_only=True):
    """A waiting trial that may continue, from the rung where it waits to the next milestone."""

    trial: int
    bracket: int
    rung: int
    to_milestone: int
    explanation: Explanation
    exploit: Exploit | None = None
    """What the trial copies from another one before it continues."""


class Policy(Protocol):
    """How trials are stopped, paused and promoted. Every call is O(log n) in the number of trials, unless stated
    otherwise."""

    new_trials_first: bool = False
    """Whether trials that were not started yet go before those that wait at a rung."""

    @property
    def brackets(self) -> int:
        """How many brackets there are."""
        return 1

    def bracket(self, number: int) -> int:
        """The bracket of the study's trial `number`, which depends only on the spec and the number."""
        del number
        return 0

    def ladder(self, bracket: int) -> tuple[int, ...]:
        """The milestones of the bracket in steps; the last one is the full budget. Raises IndexError if there is no
        such bracket."""
        ...

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        """Fold in that a trial was created. A trial that is recorded without having joined is in no cohort."""
        del trial, bracket, params

    def record(self, result: RungResult) -> None:
        """Fold in one result. Raises ValueError if the trial is already there, or there is no such rung."""
        ...

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        """Fold in that a trial continued past the rung. Idempotent. Raises ValueError if the trial is not there."""
        ...

    def exploited(self, exploit: Exploit) -> None:
        """Fold in that a trial copied another one's state; only for a policy that shares checkpoints."""
        del exploit

    def left(self, rung: int) -> bool:
        """Whether others have continued from the rung, so that the state that a trial would copy there may be
        gone. Only for a policy that shares checkpoints."""
        del rung
        return False

    def pinned(self, trial: int) -> frozenset[str]:
        """The trial's checkpoints (URIs) that others have copied or may copy."""
        del trial
        return frozenset()

    def finished_early(self, trial: int) -> None:
        """The trial ended without a failure: it completed, its program returned early, or its time was over.
        `withdraw` follows. A trial that is withdrawn without this call failed, is infeasible or was cancelled."""
        del trial

    def withdraw(self, trial: int) -> None:
        """The trial has ended and must not be promoted, even if it never reached a rung. Its results still count."""
        ...

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        """What a trial recorded at the rung may do, without a promotion. Raises ValueError if it is not recorded
        there."""
        ...

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        """The best promotable trial now, the highest rung first; None if no trial may continue."""
        ...
