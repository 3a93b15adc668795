"""Rung occupancy: how many of the trials recorded at each rung were promoted."""

import plotly.graph_objects as go

from headrace.client.wording import thinned
from headrace.report import style
from headrace.report.data import StudyData


def rung_occupancy(data: StudyData) -> go.Figure:
    """The figure."""
    rungs = thinned(data.study.rungs)
    names = [f"rung at step {rung.milestone}" for rung in rungs]
    last = data.study.spec.max_steps
    figure = go.Figure()
    for label, color, pattern, counts in (
        (
            "went on, or reached the full budget",
            "#0072b2",
            "",
            [rung.recorded if rung.milestone >= last else rung.promoted for rung in rungs],
        ),
        (
            "paused or stopped here",
            "#c3c9cf",
            "",
            [0 if rung.milestone >= last else rung.recorded - rung.promoted for rung in rungs],
        ),
        ("on the way", "#009e73", "/", [rung.running for rung in rungs]),
    ):
        if not any(counts):
            continue
        figure.add_bar(
            orientation="h",
            name=label,
            y=names,
            x=counts,
            text=[str(count) if count else "" for count in counts],
            textposition="inside",
            insidetextanchor="middle",
            marker={"color": color, "pattern": {"shape": pattern, "fgcolor": "white"}},
            hovertemplate="%{y}: %{x} " + label + "<extra></extra>",
        )
    figure.update_layout(**style.layout(height=150 + 40 * max(1, len(rungs)), barmode="stack", bargap=0.3))
    figure.update_xaxes(**style.axis("trials", rangemode="tozero"))
    figure.update_yaxes(**style.axis("", autorange="reversed", automargin=True))
    return figure
