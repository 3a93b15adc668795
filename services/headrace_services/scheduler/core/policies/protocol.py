"""What a policy is: results in, verdicts and promotions out.

A policy is a pure, single-threaded fold. The core feeds it results and moves (`joined`, `record`, `promoted`,
`withdraw`), and asks it (`verdict`, `next_promotion`); the questions change nothing. So a policy rebuilt from the event
log by the same calls is in the same state and gives the same answers. It has no clock and no I/O; what it draws by
chance, the study's seed, the trial and the rung determine.

`joined` comes in the order of the trials' numbers, the other folds in commit order. A rebuilt policy hears of all
trials first, so nothing may depend on what had been recorded when a trial joined. The baseline never joins.

Both questions say whether there is `more`: configurations that the sampler has not proposed yet. Without any, a
synchronous policy decides on a cohort that will not fill up any more.

Rungs are numbered from 0 within their bracket: `ladder(bracket)[rung]` is the milestone. At the last one the trial
has had its full budget; the engine completes it without asking.

A report that crosses several milestones is recorded at all of them, lowest first, and the verdict is asked at the
highest. After a PAUSE the engine asks `next_promotion`: when that names the trial itself, it goes on without
leaving its slot.
"""

import math
from enum import Enum
from typing import Protocol

from msgspec import Struct

from headrace_services.scheduler.core.records import Checkpoint, Exploit, Params, RungCost


class RungResult(Struct, frozen=True, kw_only=True):
    """One trial's entry at one rung. A value of None means that the metric was missing."""

    trial: int
    bracket: int
    rung: int
    milestone: int
    step: int
    value: float | None
    arrival: int
    cost: RungCost | None = None
    checkpoint: Checkpoint | None = None
    """What was saved with the report; only for a policy that shares checkpoints."""

    @property
    def finite(self) -> bool:
        """Whether there is a value that can be ranked; all others rank last and are never kept."""
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
        """A write and a read."""
        return self.write_s + self.read_s

    @property
    def pays(self) -> bool:
        """Whether the slot's next best use is worth more than the pause costs."""
        return self.worth_s > self.price_s


class Action(Enum):
    """What a trial is to do after a result."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"


class Explanation(Struct, frozen=True, kw_only=True):
    """Why: the rule, the values compared, and the outcome in one sentence with its figures."""

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
    """Of an extrapolated curve, at the full budget; its spread is one standard deviation."""
    expected_spread: float | None = None
    probability: float | None = None
    """That the trial beats the best value."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What the trial that was recorded may do."""

    action: Action
    explanation: Explanation


class Promotion(Struct, frozen=True, kw_only=True):
    """A waiting trial that may go on, from the rung where it waits to the next milestone."""

    trial: int
    bracket: int
    rung: int
    to_milestone: int
    explanation: Explanation
    exploit: Exploit | None = None
    """What the trial takes over from another before it goes on."""


class Policy(Protocol):
    """How trials are stopped, paused and promoted. Every call is O(log n) in the number of trials, where not said."""

    new_trials_first: bool = False
    """Whether trials that were not started yet go before those that wait at a rung."""

    @property
    def brackets(self) -> int:
        """How many brackets there are."""
        return 1

    def bracket(self, number: int) -> int:
        """The bracket of the study's trial `number`: a function of the spec and the number alone."""
        del number
        return 0

    def ladder(self, bracket: int) -> tuple[int, ...]:
        """The milestones of the bracket in steps; the last one is the full budget. IndexError: no such bracket."""
        ...

    def joined(self, trial: int, bracket: int, params: Params) -> None:
        """Fold in that a trial was created. A trial that is recorded without having joined is in no cohort."""
        del trial, bracket, params

    def record(self, result: RungResult) -> None:
        """Fold one result in. A ValueError says that the trial is there already, or that there is no such rung."""
        ...

    def promoted(self, trial: int, bracket: int, rung: int) -> None:
        """Fold in that a trial went past the rung; twice is as good as once. A ValueError says that it is not there."""
        ...

    def exploited(self, exploit: Exploit) -> None:
        """Fold in that a trial took over another's state; only for a policy that shares checkpoints."""
        del exploit

    def left(self, rung: int) -> bool:
        """Whether others have gone on from the rung, so that what a trial would be given there may be gone; only for a
        policy that shares checkpoints."""
        del rung
        return False

    def pinned(self, trial: int) -> frozenset[str]:
        """The trial's checkpoints (URIs) that others were given or may be given."""
        del trial
        return frozenset()

    def finished_early(self, trial: int) -> None:
        """The trial ended without a failure: it completed, its program returned early, or its time was over. `withdraw`
        follows. One that is withdrawn without this call failed, is infeasible or was cancelled."""
        del trial

    def withdraw(self, trial: int) -> None:
        """The trial is over and not to be promoted, also when it never came to a rung. Its results still count."""
        ...

    def verdict(self, trial: int, bracket: int, rung: int, *, more: bool = True) -> Verdict:
        """What a trial recorded at the rung may do by itself. A ValueError says that it is not recorded there."""
        ...

    def next_promotion(self, *, more: bool = True) -> Promotion | None:
        """The best promotable trial now, the highest rung first; None when no trial may go on."""
        ...
