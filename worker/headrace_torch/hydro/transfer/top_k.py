"""Validates the surrogate's best configurations on the target: takes results, and returns trials to start.

The surrogate's best configuration is often not the target's: in Hydro's own published run (50 trials, Spearman
0.937) it ranks twelfth there, and the second candidate recovers 2.9 points of accuracy. So at least two are
validated. While the search is still running, an idle device need not wait: the leader so far is started eagerly.
If it later drops out of the top k, its result still counts, and those in the top k at the end are validated in any
case.

States of a trial: seen → started → validated; only `start` moves it to started, and only `validated` to validated.
Every report may arrive twice: the second one changes nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace_torch.agreement import Score, as_badness
from headrace_torch.hydro.errors import TransferError
from headrace_torch.hydro.transfer.which import Hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Hyperparameters and their score on the surrogate; None if the trial failed or diverged."""

    hyperparameters: Hyperparameters
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A trial of the search that was run on the target. `place` is its rank on the surrogate, from 1."""

    place: int
    hyperparameters: Hyperparameters
    surrogate_score: Score
    target_score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """What validation found.

    Attributes:
        validated: by place on the surrogate.
        best: the best of them on the target.
        gained: how much better the best is than the surrogate's first, on the target: what validating only one
            would have lost. None if the first failed there.
        regret: how much worse the best is than the best of direct tuning; None if direct results were not given.
    """

    validated: Sequence[Validated]
    best: Validated
    gained: float | None
    regret: float | None

    def __str__(self) -> str:
        lines = [
            f"  {one.place}. on the surrogate ({_text(one.surrogate_score)}): {_text(one.target_score)} on the target"
            f"{'  best' if one is self.best else ''}  {dict(one.hyperparameters)}"
            for one in self.validated
        ]
        regret = (
            "not known (no direct tuning to compare with)" if self.regret is None else f"{self.regret:.4g}"
        )
        gained = "all (it failed on the target)" if self.gained is None else f"{self.gained:.4g}"
        return "\n".join([f"regret: {regret}; gained over the surrogate's first: {gained}", *lines])


@dataclass(slots=True, kw_only=True)
class TopK:
    """Decides which trials to run on the target.

    Args:
        k: how many of the surrogate's best are validated; at least 2.
        maximize: whether a greater score is better.
        eager_after: how many results the search must have before a leader is started eagerly.
    """

    k: int = 2
    maximize: bool = False
    eager_after: int = 5
    _trials: dict[int, Trial] = field(default_factory=dict, init=False)
    _started: dict[int, None] = field(default_factory=dict, init=False)
    _scores: dict[int, Score] = field(default_factory=dict, init=False)
    _finished: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.k < 2:
            raise TransferError(
                f"k must be at least 2, not {self.k}: the surrogate's first is often not the target's"
            )

    def report(self, number: int, trial: Trial) -> None:
        """Records a result of the search on the surrogate.

        Raises:
            TransferError: the number already belongs to another trial, or the search was declared finished.
        """
        if self._trials.get(number) == trial:
            return
        if number in self._trials or self._finished:
            state = "the search is finished" if self._finished else "it has another result already"
            raise TransferError(f"trial {number} cannot report: {state}")
        self._trials[number] = trial

    def finish(self) -> None:
        """The search on the surrogate is over.

        Raises:
            TransferError: no trial of it has a score.
        """
        if all(math.isinf(self._badness(number)) for number in self._trials):
            raise TransferError("no trial of the search has a score; there is nothing to transfer")
        self._finished = True

    def start(self, idle: int) -> list[int]:
        """Numbers of trials to run on the target now, best first; each is returned once.

        While the search runs, at most k are started, and none before `eager_after` results.

        Args:
            idle: the number of idle devices.
        """
        order = [number for number in self._order() if not math.isinf(self._badness(number))]
        if self._finished:
            wanted = [number for number in order[: self.k] if number not in self._started]
        elif len(self._trials) < self.eager_after:
            return []
        else:
            wanted = [number for number in order[: self.k] if number not in self._started]
            wanted = wanted[: max(0, self.k - len(self._started))]
        chosen = wanted[: max(0, idle)]
        self._started.update(dict.fromkeys(chosen))
        return chosen

    def validated(self, number: int, score: Score) -> None:
        """Records a result on the target.

        Raises:
            TransferError: the trial was not started, or already has another result.
        """
        if number not in self._started:
            raise TransferError(f"trial {number} was not started on the target")
        if number in self._scores and self._scores[number] != score:
            raise TransferError(
                f"trial {number} has another result on the target: {self._scores[number]}, not {score}"
            )
        self._scores[number] = score

    @property
    def done(self) -> bool:
        """Whether the search is finished and all trials that were started, or must be, have results."""
        if not self._finished:
            return False
        order = [number for number in self._order() if not math.isinf(self._badness(number))]
        return all(number in self._scores for number in (*self._started, *order[: self.k]))

    def outcome(self, direct: Sequence[Score] = ()) -> TransferReport:
        """The report.

        Args:
            direct: scores of direct tuning on the target, if there are any: the regret is relative to the best of
                them.

        Raises:
            TransferError: validation is not done, or every trial failed on the target.
        """
        if not self.done:
            raise TransferError("validation is not done: some trials have not run on the target yet")
        places = {number: place for place, number in enumerate(self._order(), start=1)}
        found = sorted(
            (
                Validated(
                    place=places[number],
                    hyperparameters=self._trials[number].hyperparameters,
                    surrogate_score=self._trials[number].score,
                    target_score=score,
                )
                for number, score in self._scores.items()
            ),
            key=lambda one: one.place,
        )
        best = min(found, key=lambda one: as_badness(one.target_score, maximize=self.maximize))
        reached = as_badness(best.target_score, maximize=self.maximize)
        if math.isinf(reached):
            raise TransferError(
                f"all {len(found)} trials failed on the target; raise k, or use a larger surrogate"
            )
        first = as_badness(found[0].target_score, maximize=self.maximize)
        known = [value for one in direct if math.isfinite(value := as_badness(one, maximize=self.maximize))]
        return TransferReport(
            validated=found,
            best=best,
            gained=None if math.isinf(first) else first - reached,
            regret=max(0.0, reached - min(known)) if known else None,
        )

    def _order(self) -> list[int]:
        return sorted(self._trials, key=lambda number: (self._badness(number), number))

    def _badness(self, number: int) -> float:
        return as_badness(self._trials[number].score, maximize=self.maximize)


def _text(score: Score) -> str:
    return "failed" if score is None else f"{score:.4g}"
