"""Reports that are saved because of their value: the best one so far, if the study keeps its checkpoint (`keep:
best`), and one that ends the study (`until.value`).
"""

from collections.abc import Iterable, Mapping

from headrace.bests import excess, improves, reached
from headrace.trial.runtime import Assignment, MetricBound


class Best:
    """Follows one trial's reports. If nothing can be saved, no report has to be."""

    def __init__(self, assignment: Assignment) -> None:
        saves = assignment.checkpoint_dir is not None
        self._metric = assignment.metric
        self._best = assignment.keep_best if saves else None
        self._end = assignment.ends_study if saves else None
        self._value = self._best.best_value if self._best else None

    @property
    def wanted(self) -> bool:
        """Whether any report may have to be saved because of its value."""
        return self._best is not None or self._end is not None

    def observe(self, metrics: Mapping[str, float]) -> bool:
        """Whether a report beyond all earlier steps must be saved. Remembers the best one so far."""
        best = self._is_best(metrics)
        return best or self._ends(metrics)

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        value = metrics.get(self._metric)
        if self._best is None or not improves(value, self._value, maximize=self._best.maximize):
            return False
        if not _meets(metrics, self._best.constraints):
            return False
        self._value = value
        return True

    def _ends(self, metrics: Mapping[str, float]) -> bool:
        end, value = self._end, metrics.get(self._metric)
        return (
            end is not None
            and reached(value, end.value, maximize=end.maximize)
            and _meets(metrics, end.constraints)
        )


def _meets(metrics: Mapping[str, float], constraints: Iterable[MetricBound]) -> bool:
    return all(
        excess(metrics.get(one.metric), at_most=one.at_most, at_least=one.at_least) <= 0
        for one in constraints
    )
