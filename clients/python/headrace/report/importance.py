"""The importance of parameters: one bar per parameter, the most important one on top."""

import plotly.graph_objects as go

from headrace.client import wording
from headrace.client.model import Importance
from headrace.report import style

ROWS = 30
"""The most parameters that are drawn: the most important ones."""


def importance_bars(found: Importance) -> go.Figure:
    """The figure."""
    parts = found.parameters[:ROWS]
    names = [style.text(style.short(part.parameter, 40)) for part in parts]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=names,
            x=[100 * part.share for part in parts],
            text=[wording.percent(part.share, 1) for part in parts],
            textposition="outside",
            cliponaxis=False,
            customdata=[part.trials for part in parts],
            marker={"color": "#0072b2"},
            hovertemplate="%{y}: %{x:.1f} %, in %{customdata} trials<extra></extra>",
        )
    )
    figure.update_layout(**style.layout(height=110 + 32 * len(parts), bargap=0.35))
    title = f"importance for {style.short(found.metric, 50)}, %"
    most = 100 * max((part.share for part in parts), default=1)
    figure.update_xaxes(**style.axis(title, range=[0, 1.12 * most]))
    figure.update_yaxes(**style.axis("", autorange="reversed", automargin=True))
    return figure
