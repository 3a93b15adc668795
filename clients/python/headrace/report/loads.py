"""How busy the devices were: one line per slot over the last hour, with utilization above and memory below."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from headrace.report import style
from headrace.report.data import SlotHistory, StudyData

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1c2733", "#8f99a3")
DASHES = ("solid", "dash", "dot", "dashdot")


def device_loads(data: StudyData) -> go.Figure | None:
    """The figure; None if nothing is known about the slots that the study's trials were on."""
    if not data.devices:
        return None
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    for place, device in enumerate(data.devices):
        _add(figure, device, place)
    figure.update_layout(**style.layout(height=480, hovermode="closest"))
    figure.update_yaxes(**style.axis("utilization, %", range=[0, 103]), row=1, col=1)
    figure.update_yaxes(**style.axis("memory in use, GiB", rangemode="tozero"), row=2, col=1)
    figure.update_xaxes(**style.axis("time (UTC)"), row=2, col=1)
    return figure


def _add(figure: go.Figure, device: SlotHistory, place: int) -> None:
    name = style.text(f"{device.worker} slot {device.index}")
    line = {
        "color": COLORS[place % len(COLORS)],
        "dash": DASHES[place // len(COLORS) % len(DASHES)],
        "width": 2,
    }
    times = [load.minute for load in device.loads]
    busy = [None if load.utilization is None else 100 * load.utilization for load in device.loads]
    used = [load.memory_used_bytes / 2**30 for load in device.loads]
    curves: list[tuple[int, Sequence[float | None], str]] = [
        (1, busy, "%{y:.0f} %"),
        (2, used, "%{y:.1f} GiB"),
    ]
    for row, values, unit in curves:
        figure.add_scatter(
            x=times,
            y=values,
            mode="lines+markers" if len(times) == 1 else "lines",
            line=line,
            name=name,
            legendgroup=name,
            showlegend=row == 1,
            hovertemplate=f"{name}: {unit}<extra></extra>",
            row=row,
            col=1,
        )
