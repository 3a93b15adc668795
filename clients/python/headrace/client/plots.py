"""The figures of a study, for notebooks: what `study.plot` offers. They are those of the report."""

from typing import TYPE_CHECKING, Any

from headrace.client.missing import MissingExtraError
from headrace.errors import HeadraceError, InvalidFieldError, Violation, show_value

if TYPE_CHECKING:
    from headrace.client.sync import Study
    from headrace.report.data import StudyData


class Plots:
    """The figures of a study, as Plotly objects. Each call reads the study as of now. Needs `headrace[report]`."""

    def __init__(self, study: "Study") -> None:
        self._study = study

    def curves(self) -> Any:
        """The learning curves: one line per trial, with the rungs."""
        data = self._data(reports=True)
        from headrace.report.curves import learning_curves

        return learning_curves(data)

    def parallel(self) -> Any:
        """Parallel coordinates: one line per trial through its parameters and values."""
        data = self._data()
        if not any(value is not None for one in data.trials for value in data.outcome.values(one).values()):
            raise HeadraceError(f"No trial of {self._study.name} has a value yet.", remedy="Try again later.")
        from headrace.report.parallel import parallel_coordinates

        return parallel_coordinates(data)

    def front(self, x: str | None = None, y: str | None = None) -> Any:
        """The Pareto front over two objectives: by default the first two."""
        data = self._data()
        names = [one.metric for one in data.study.spec.objectives]
        if len(names) < 2:
            raise HeadraceError(
                f"Study {data.study.name} has one objective, and so no front.",
                remedy="plot.curves() and plot.parallel() show it.",
            )
        wrong = [
            Violation(
                field=field,
                value=show_value(name),
                message="is not an objective",
                remedy=f"Choose among {', '.join(names)}.",
            )
            for field, name in (("x", x), ("y", y))
            if name not in (None, *names)
        ]
        if wrong:
            raise InvalidFieldError(wrong)
        across = x or next(name for name in names if name != y)
        from headrace.report.front import pareto_front

        return pareto_front(data, across, y or next(name for name in names if name != across))

    def importance(self, metric: str | None = None) -> Any:
        """How much each parameter has to do with good values of an objective: by default the first."""
        _require()
        metric = metric or self._study.status().spec.objective.metric
        found = {one.metric: one for one in self._study.importance()}.get(metric)
        if found is None or found.reason:
            why = f": {found.reason}" if found else ", as it is not an objective"
            raise HeadraceError(
                f"The importance for {metric} is not known{why}.",
                remedy="`headrace importance` says what it needs.",
            )
        from headrace.report.importance import importance_bars

        return importance_bars(found)

    def gantt(self) -> Any:
        """The attempts of trials on slots over time."""
        data = self._data(events=True)
        from headrace.report.gantt import gantt

        figure = gantt(data)
        if figure is None:
            raise HeadraceError(
                f"No trial of {self._study.name} was on a worker's slot.",
                remedy="Trials of ask and tell run elsewhere; plot.curves() shows them.",
            )
        return figure

    def rungs(self) -> Any:
        """How many trials were recorded at each rung, and how many were promoted."""
        data = self._data(trials=False)
        from headrace.report.rungs import rung_occupancy

        return rung_occupancy(data)

    def _data(self, *, trials: bool = True, reports: bool = False, events: bool = False) -> "StudyData":
        _require()
        from headrace.report.data import StudyData, other_of

        info = self._study.status()
        return StudyData(
            study=info,
            trials=tuple(self._study.trials()) if trials else (),
            reports=tuple(self._study.reports()) if reports else (),
            events=tuple(self._study.events(until=info.cursor)) if events else (),
            other=other_of(self._study, info) if events else None,
        )


def _require() -> None:
    try:
        import plotly  # noqa: F401 - asked for here, to say what is missing before any work is done
    except ImportError as error:
        raise MissingExtraError.of("A figure", "report", error.name) from None
