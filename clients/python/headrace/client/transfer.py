"""The outcome of a transfer: the trials that train the best configurations of another study, and the regret.

The regret of a transfer is what trusting only the first study's ranking would have lost: the best value of all
these trials compared with that of the first one taken.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.client.model import StudyInfo, TrialInfo
from headrace.client.outcome import Outcome
from headrace.spec import BestOfSampler


@dataclass(frozen=True, slots=True)
class Transferred:
    """The trials of a study whose sampler is `best_of`, in the order in which they were taken, the best one
    first. With `eager`, one may have been taken before a better one was found.
    """

    study: StudyInfo
    trials: tuple[TrialInfo, ...]

    @classmethod
    def of(cls, study: StudyInfo, trials: Iterable[TrialInfo]) -> "Transferred | None":
        """The transfer of a study with these trials; None if the study is not a transfer."""
        if not isinstance(study.spec.sampler, BestOfSampler):
            return None
        return cls(study, tuple(trial for trial in trials if trial.source is not None))

    @property
    def source_study(self) -> str:
        """The name of the other study."""
        sampler = self.study.spec.sampler
        assert isinstance(sampler, BestOfSampler)
        return sampler.study

    @property
    def eager(self) -> bool:
        """Whether some may have been taken before the other study ended."""
        sampler = self.study.spec.sampler
        return isinstance(sampler, BestOfSampler) and sampler.eager is not None

    @property
    def regret(self) -> float | None:
        """How much better the best of all trials is than the first one taken. None if the first has no sound
        value.
        """
        return self.regrets[0] if self.trials else None

    @property
    def regrets(self) -> tuple[float | None, ...]:
        """How much better the best of all trials is than the best of the first one, of the first two, and so on.
        None if none of those has a sound value.
        """
        better = max if Outcome(self.study).maximize else min
        best: list[float | None] = []
        for trial in self.trials:
            known = [] if trial.flaw == "failed" or trial.score is None else [trial.score]
            known += [value for value in best[-1:] if value is not None]
            best.append(better(known) if known else None)
        last = best[-1] if best else None
        return tuple(None if value is None or last is None else abs(last - value) for value in best)
