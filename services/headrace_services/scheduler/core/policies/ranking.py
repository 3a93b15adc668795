"""The ranks at one rung, maintained incrementally: every query is O(log n) in the number of results.

Results are ordered by value (with the sign flipped if greater is better), ties by arrival. Results without a
finite value come last, in order of arrival. A second list holds the results whose trials wait, so the best of them
and its rank among all are found without a scan.

A scheduler keeps this for every trial of a study for as long as the study runs. So a result is stored once, as its
sort key; the other fields of a plain result are the same for all of a rung.
"""

import math

from msgspec import Struct
from sortedcontainers import SortedList

from headrace_services.scheduler.core.policies.protocol import RungResult

Entry = tuple[int, float, int, int]
"""(1 without a finite value, signed value, arrival, trial): the natural order of these tuples is the order of
ranks."""


class Place(Struct, frozen=True, kw_only=True):
    """The place of a result. `rank` breaks ties by arrival; `level` is 1 + the number of strictly better ones."""

    rank: int
    level: int
    results: int


class Ranking:
    """The results of one rung of one bracket."""

    def __init__(self, *, maximize: bool) -> None:
        self._sign = -1.0 if maximize else 1.0
        self._all: SortedList = SortedList()
        self._waiting: SortedList = SortedList()
        self._numbers: SortedList = SortedList()
        """The waiting trials, by number."""
        self._entries: dict[int, Entry] = {}
        self._rung = (0, 0, 0)
        """Bracket, rung and milestone of all results."""
        self._others: dict[int, RungResult] = {}
        """The results that hold more than `_rung` and their entries do."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, trial: int) -> bool:
        return trial in self._entries

    def add(self, result: RungResult, *, waits: bool) -> None:
        """Enter a result; a ValueError means that the trial is already there."""
        if result.trial in self._entries:
            raise ValueError(f"trial {result.trial} is recorded at rung {result.rung} already")
        self._rung = (result.bracket, result.rung, result.milestone)
        entry: Entry = (1, 0.0, result.arrival, result.trial)
        if result.value is not None and result.finite:
            entry = (0, self._sign * result.value, result.arrival, result.trial)
        self._entries[result.trial] = entry
        self._all.add(entry)
        if entry[0] or result.step != result.milestone or result.cost or result.checkpoint:
            self._others[result.trial] = result
        if waits:
            self.wait(result.trial)

    def wait(self, trial: int) -> None:
        """Let a recorded trial wait here for promotion; a trial without a finite value never waits."""
        entry = self.entry(trial)
        if entry[0] == 0 and entry not in self._waiting:
            self._waiting.add(entry)
            self._numbers.add(trial)

    def leave(self, trial: int) -> None:
        """Let a trial no longer wait here."""
        self._waiting.discard(self.entry(trial))
        self._numbers.discard(trial)

    def result(self, trial: int) -> RungResult:
        """The trial's result; a ValueError means that it has none here."""
        if trial not in self._entries:
            raise ValueError(f"trial {trial} is not recorded at this rung")
        if trial in self._others:
            return self._others[trial]
        bracket, rung, milestone = self._rung
        _, signed, arrival, _ = self._entries[trial]
        return RungResult(
            trial=trial,
            bracket=bracket,
            rung=rung,
            milestone=milestone,
            step=milestone,
            value=self._sign * signed,
            arrival=arrival,
        )

    def entry(self, trial: int) -> Entry:
        """The sort key of the trial's result."""
        return self._entries[trial]

    @property
    def trials(self) -> list[int]:
        """The trials with results, in order of arrival."""
        return list(self._entries)

    def place(self, trial: int) -> Place:
        """The current place of the trial's result."""
        tier, signed, _, _ = entry = self.entry(trial)
        return Place(
            rank=self._all.index(entry) + 1,
            level=self._all.bisect_left((tier, signed)) + 1,
            results=len(self._all),
        )

    def best(self, count: int) -> list[int]:
        """The trials with the best results, at most this many, best first."""
        return [entry[3] for entry in self._all[:count]]

    def count_within(self, signed: float) -> int:
        """How many finite results are no worse than a signed value (greater is worse)."""
        return int(self._all.bisect_right((0, signed, math.inf, math.inf)))

    def best_waiting(self) -> int | None:
        """The waiting trial with the best result."""
        return self._waiting[0][3] if self._waiting else None

    def first_waiting(self) -> int | None:
        """The waiting trial with the lowest number."""
        return self._numbers[0] if self._numbers else None

    def waiting_rank(self, trial: int) -> int | None:
        """The trial's rank among those that wait, from 1; None if it does not wait."""
        entry = self.entry(trial)
        return int(self._waiting.index(entry)) + 1 if entry in self._waiting else None

    def value_at(self, rank: int) -> float | None:
        """The value at a rank, from 1; None if that result has no finite value, or there is no such rank."""
        if not 1 <= rank <= len(self._all):
            return None
        tier, signed, _, _ = self._all[rank - 1]
        return None if tier else self._sign * float(signed)
