"""The best report of a trial so far, where the study keeps its checkpoint (`keep: best`)."""

from collections.abc import Mapping

from headrace.bests import excess, improves
from headrace.trial.runtime import Assignment


class Best:
    """Follows one trial's reports. Without `keep: best`, or where nothing can be saved, none is the best."""

    def __init__(self, assignment: Assignment) -> None:
        self._metric = assignment.metric
        self._wanted = assignment.keep_best if assignment.checkpoint_dir is not None else None
        self._value = self._wanted.best_value if self._wanted else None

    @property
    def wanted(self) -> bool:
        """Whether the best report is to be saved."""
        return self._wanted is not None

    def take(self, metrics: Mapping[str, float]) -> bool:
        """Whether a report that goes further than all before is the best so far; it is remembered."""
        value = metrics.get(self._metric)
        if self._wanted is None or not improves(value, self._value, maximize=self._wanted.maximize):
            return False
        if any(
            excess(metrics.get(one.metric), at_most=one.at_most, at_least=one.at_least) > 0
            for one in self._wanted.constraints
        ):
            return False
        self._value = value
        return True
