"""The curves of a study's trials, in columns: for pictures and tables of many trials."""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import isnan

from headrace.client.convert import REASONS, TRIAL_STATES, unshown
from headrace.client.model import TerminationReason, TrialState, Unshown, Value
from headrace.spec import CategoricalDomain, Domain, IntDomain
from headrace.v1 import study_pb2 as pb


@dataclass(kw_only=True)
class Curves:
    """Trials and the curves of their metrics, in columns.

    Per trial, in the order of their numbers: `numbers`, `states`, `reasons`, `scores` (NaN if no value counts),
    `params` (None where a trial lacks the parameter), and `starts`. Per point: `steps`, `times_s` (seconds since
    the study was created) and `metrics` (NaN where a report lacks the metric). The points of trial number
    `numbers[i]` are those from `starts[i]` to `starts[i + 1]`.
    """

    space: Mapping[str, Domain] = field(default_factory=dict)
    """The study's space."""
    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    states: list[TrialState] = field(default_factory=list)
    reasons: list[TerminationReason | None] = field(default_factory=list)
    scores: "array[float]" = field(default_factory=lambda: array("d"))
    params: dict[str, list[Value | None]] = field(default_factory=dict)
    starts: "array[int]" = field(default_factory=lambda: array("q", [0]))
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    metrics: dict[str, "array[float]"] = field(default_factory=dict)
    unshown: list[Unshown] = field(default_factory=list)
    """The trials that the scheduler left out because it cannot show them."""
    more_metrics: bool = False
    """Whether there are more metrics than the 64 that are read at once: name those to read."""

    def __len__(self) -> int:
        """How many trials there are."""
        return len(self.numbers)

    def curve(self, number: int, metric: str) -> list[tuple[int, float]]:
        """The steps and values of a trial's metric, without gaps. Raises KeyError for a trial or a metric that is
        not there.
        """
        try:
            place = self.numbers.index(number)
        except ValueError:
            raise KeyError(number) from None
        points = range(self.starts[place], self.starts[place + 1])
        values = self.metrics[metric]
        return [(self.steps[point], values[point]) for point in points if not isnan(values[point])]

    def add(self, page: pb.ReadCurvesResponse) -> None:
        """Add the trials of a page of the scheduler's answer."""
        self.more_metrics |= page.more_metrics
        self.unshown += map(unshown, page.unshown)
        self.numbers.extend(page.numbers)
        self.states += [TRIAL_STATES.get(state, TrialState.UNKNOWN) for state in page.states]
        self.reasons += [REASONS.get(reason) for reason in page.reasons]
        self.scores.extend(page.scores)
        for parameter in page.parameters:
            self.params.setdefault(parameter.name, []).extend(_values(parameter, self.space))
        self.starts.extend(list(accumulate(page.points, initial=self.starts[-1]))[1:])
        for metric in page.metrics:
            column = self.metrics.setdefault(metric.name, _gap(len(self.steps)))
            column.extend(metric.values)
        self.steps.extend(page.steps)
        self.times_s.extend(page.times_s)
        for column in self.metrics.values():  # a metric may appear while the pages are read
            column.extend(_gap(len(self.steps) - len(column)))


def _gap(points: int) -> "array[float]":
    return array("d", [float("nan")]) * points


def _values(column: pb.ParameterColumn, space: Mapping[str, Domain]) -> Iterable[Value | None]:
    domain = space.get(column.name)
    if isinstance(domain, CategoricalDomain):
        return [domain.values[place] if place >= 0 else None for place in column.places]
    kind = int if isinstance(domain, IntDomain) else float
    return [None if isnan(value) else kind(value) for value in column.values]
