"""A study with all its results: what `headrace.optimize`, `client.run` and `study.result` return."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.client.missing import MissingExtraError
from headrace.client.model import Listing, Report, StudyInfo, TrialInfo
from headrace.client.records import dataframe
from headrace.errors import InvalidFieldError, Violation, show_value

if TYPE_CHECKING:
    import pandas as pd

    from headrace.report.data import StudyData

PLOTS = ("curves", "parallel", "front")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A study, its trials and its reports, as of one moment."""

    study: StudyInfo
    trials: Listing[TrialInfo]
    """The trials by number."""
    reports: Listing[Report]

    @classmethod
    def of(cls, study: StudyInfo, trials: Iterable[TrialInfo], reports: Iterable[Report]) -> "Result":
        """The result of a study from which nothing is left out."""
        shown, told = Listing[TrialInfo](), Listing[Report]()
        shown += trials
        told += reports
        return cls(study=study, trials=shown, reports=told)

    def __repr__(self) -> str:
        return repr(self.study).replace("<StudyInfo", "<Result", 1)

    @property
    def best(self) -> TrialInfo | None:
        """The best feasible trial; None if no trial has a finite value. Raises SeveralObjectivesError if there
        is a Pareto front instead.
        """
        return self.study.best

    @property
    def front(self) -> tuple[TrialInfo, ...]:
        """With several objectives: the Pareto front, the feasible trials that no other trial beats in every
        objective.
        """
        return self.study.front

    def dataframe(self) -> "pd.DataFrame":
        """One row for each trial, with the columns of `Study.dataframe`. Needs `headrace[report]`."""
        return dataframe(self.study, self.trials)

    def plot(self, what: str | None = None) -> Any:
        """A Plotly figure of the report: `curves`, `parallel` (parameters and values) or `front`. The default is
        the front for several objectives, the curves for trials of several steps, or else the parameters. Needs
        `headrace[report]`."""
        chosen = what or self._usual_plot()
        if chosen not in PLOTS or (chosen == "front" and not self.study.spec.further_objectives):
            said = "has one objective, and so no front" if chosen == "front" else "is not a figure"
            remedy = f"Choose among {', '.join(PLOTS)}."
            violation = Violation(field="what", value=show_value(what), message=said, remedy=remedy)
            raise InvalidFieldError([violation])
        data = self._data("A figure")
        if chosen == "curves":
            from headrace.report.curves import learning_curves

            return learning_curves(data)
        if chosen == "front":
            from headrace.report.front import pareto_fronts

            return pareto_fronts(data)[0]
        from headrace.report.parallel import parallel_coordinates

        return parallel_coordinates(data)

    def report(self) -> str:
        """The report as one HTML page. Needs `headrace[report]`."""
        data = self._data("A report")
        from headrace.report.page import render

        return render(data)

    def _usual_plot(self) -> str:
        if self.study.spec.further_objectives:
            return "front"
        return "curves" if self.study.spec.max_steps > 1 else "parallel"

    def _data(self, what: str) -> "StudyData":
        try:
            import plotly  # noqa: F401 - asked for here, to say what is missing before any work is done
        except ImportError as error:
            raise MissingExtraError.of(what, "report", error.name) from None
        from headrace.report.data import StudyData

        return StudyData(study=self.study, trials=tuple(self.trials), reports=tuple(self.reports), events=())
