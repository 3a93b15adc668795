"""Effort: a share of run-all's cost that waiting trials may use when no promotion is left and none may follow.

Successive halving is cheap. If early ranks mislead, it is too cheap: the best trial is left waiting at a low rung.
Effort spends more on the waiting trials, in turns: the one with the best quantile at its rung, and the oldest one.
The oldest is a blind pick. It stays the oldest, so it continues to its end, whatever its rank: no ranking can
mislead this hedge.

Committed steps are counted: the steps of each trial up to its last rung, or up to its next one while it trains. A
program that ends on its way counts as if it had reached that next rung.
"""


class Effort:
    """What a study has committed, and the share that it may commit. In steps, not seconds."""

    def __init__(self, *, share: float, full: int) -> None:
        self._share = share
        self._full = full
        self._joined: set[int] = set()
        self._upto: dict[int, int] = {}
        self._committed = 0
        self.trains: set[int] = set()
        """Trials that train by effort."""
        self.given = 0
        """How many trials continued although they were not among the best 1/η."""

    @property
    def run_all(self) -> int:
        """What the study's trials would cost if each had the full budget."""
        return len(self._joined) * self._full

    def joined(self, trial: int) -> None:
        """A trial was created: it adds to the cost of run-all."""
        self._joined.add(trial)

    def runs_to(self, trial: int, milestone: int) -> None:
        """A trial trains up to a milestone, or has reached it."""
        self._committed += max(0, milestone - self._upto.get(trial, 0))
        self._upto[trial] = max(milestone, self._upto.get(trial, 0))

    def covers(self, steps: int) -> bool:
        """Whether this many further steps are within the share."""
        return self._committed + steps <= self._share * self.run_all

    def sentence(self) -> str:
        """How much may be used, and how much is used: `10% of run-all's cost may be used up, and 7.3% is`."""
        used = self._committed / self.run_all if self.run_all else 0.0
        return f"{self._share:.3g} of run-all's cost may be used up, and {used:.3g} is"
