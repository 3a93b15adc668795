"""A study as one self-contained HTML page: learning curves, parameters, schedule, rungs and trials.

`build_report(study)` reads everything through the SDK and returns the page. `data` collects the data. `curves`,
`parallel`, `gantt` and `rungs` each draw one figure from plain values, and `page` combines them. Plotly comes
with `headrace[report]`.
"""

from typing import TYPE_CHECKING

from headrace.client.missing import MissingExtraError

if TYPE_CHECKING:
    from headrace.client import Study

__all__ = ["build_report"]


def build_report(study: "Study") -> str:
    """The page of a study that has ended or is running."""
    try:
        import plotly  # noqa: F401 - asked for here, to say what is missing before any work is done
    except ImportError as error:
        raise MissingExtraError.of("A report", "report", error.name) from None
    from headrace.report.data import gather
    from headrace.report.page import render

    return render(gather(study))
