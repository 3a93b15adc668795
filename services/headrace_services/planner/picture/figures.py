"""The figures of a plan's page, each from the plan alone: stages, memory by stage, schedule, memory over time."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from headrace.report import style
from headrace_services.planner.drawing import COLOURS, GIB, PASSES, spans
from headrace_services.planner.picture.layers import KINDS, MEMORY, kind_of, memory_of
from headrace_services.planner.plan import Plan
from headrace_services.planner.simulator import Event
from headrace_services.planner.timeline import memory_over_time, parts

MOST_BARS = 12_000
"""The most bars of one figure. A browser draws more of them slowly, so the parts of passes are left out then."""
Bar = tuple[float, float, str, str]
"""Start, length, row and tooltip."""


def stages(plan: Plan) -> go.Figure:
    """One row per stage, one cell per layer."""
    figure = go.Figure()
    cells: dict[tuple[str, bool], list[tuple[int, int]]] = {}
    for number, stage in enumerate(plan.stages):
        for layer in stage.layers:
            key = (kind_of(plan.request.model.layers[layer]), layer in stage.recomputed)
            cells.setdefault(key, []).append((number, layer))
    for (kind, again), places in sorted(cells.items(), key=lambda one: min(layer for _, layer in one[1])):
        name = f"{kind}, recomputed" if again else kind
        figure.add_bar(
            orientation="h",
            name=name,
            y=[_stage(number) for number, _ in places],
            base=[layer for _, layer in places],
            x=[1] * len(places),
            marker={
                "color": COLOURS["recompute"] if again else KINDS[kind],
                "line": {"color": "white", "width": 1},
                "pattern": {"shape": "/" if again else "", "fgcolor": "white", "size": 5},
            },
            hovertext=[f"layer {layer}: {name}" for _, layer in places],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    figure.update_layout(**style.layout(height=_height(plan), barmode="overlay", bargap=0.2))
    figure.update_xaxes(**style.axis("layer"))
    figure.update_yaxes(**_rows(plan))
    return figure


def memory(plan: Plan) -> go.Figure:
    """One bar per stage, by component, compared with the device."""
    figure = go.Figure()
    for what, colour in MEMORY.items():
        used = [memory_of(stage)[what] / GIB for stage in plan.stages]
        if any(used):
            figure.add_bar(
                orientation="h",
                name=what,
                y=[_stage(number) for number in range(len(used))],
                x=used,
                marker={"color": colour, "line": {"color": "white", "width": 1}},
                hovertemplate="%{y}: %{x:.1f} GiB of " + what + "<extra></extra>",
            )
    figure.update_layout(**style.layout(height=_height(plan), barmode="stack", bargap=0.2))
    for gib, words, dash in _limits(plan):
        figure.add_vline(x=gib, line={"color": "#cc3311", "dash": dash, "width": 1.5})
        figure.add_scatter(
            x=[None], y=[None], mode="lines", name=words, line={"color": "#cc3311", "dash": dash}
        )
    figure.update_xaxes(**style.axis("GiB of a device at its peak", rangemode="tozero"))
    figure.update_yaxes(**_rows(plan))
    return figure


def schedule(plan: Plan) -> go.Figure:
    """One row per stage, one bar per pass; for a long iteration, the beginning and the end."""
    rows, drawn = _drawn(plan)
    figure = _columns(drawn)
    for column, (start_s, end_s) in enumerate(drawn, start=1):
        passes, inner = _bars(plan, rows, start_s, end_s)
        whole = sum(map(len, passes.values())) + sum(map(len, inner.values())) <= MOST_BARS
        for bars, width, offset in ((passes, 0.8, -0.4), (inner if whole else {}, 0.3, 0.1)):
            for what, listed in bars.items():
                figure.add_bar(
                    orientation="h",
                    name=what,
                    legendgroup=what,
                    showlegend=column == 1 or what == "gradients and optimizer",
                    base=[bar[0] for bar in listed],
                    x=[bar[1] for bar in listed],
                    y=[bar[2] for bar in listed],
                    width=width,
                    offset=offset,
                    marker={"color": COLOURS[what], "line": {"color": "white", "width": 0.5}},
                    hovertext=[bar[3] for bar in listed],
                    hovertemplate="%{hovertext}<extra></extra>",
                    row=1,
                    col=column,
                )
    _seconds(figure, drawn)
    figure.update_layout(**style.layout(height=_height(plan), barmode="overlay"))
    figure.update_yaxes(**_rows(plan))
    return figure


def memory_timeline(plan: Plan) -> go.Figure:
    """A step curve for every stage, over the same stretches of time as the schedule."""
    rows, drawn = _drawn(plan)
    figure = _columns(drawn)
    for column, (start_s, end_s) in enumerate(drawn, start=1):
        for number, (stage, events) in enumerate(zip(plan.stages, rows, strict=True)):
            curve = list(memory_over_time(stage, events))
            before = [used for at_s, used in curve if at_s <= start_s]
            points = [
                (start_s, before[-1]),
                *((at_s, used) for at_s, used in curve if start_s < at_s < end_s),
            ]
            points.append((end_s, points[-1][1]))
            figure.add_scatter(
                mode="lines",
                name=_stage(number),
                legendgroup=_stage(number),
                showlegend=column == 1,
                x=[at_s for at_s, _ in points],
                y=[used / GIB for _, used in points],
                line={"shape": "hv", "width": 1.8, "color": _shade(number, len(rows))},
                hovertemplate=_stage(number) + ": %{y:.1f} GiB at %{x:.4g} s<extra></extra>",
                row=1,
                col=column,
            )
        for gib, words, dash in _limits(plan):
            figure.add_scatter(
                mode="lines",
                name=words,
                legendgroup=words,
                showlegend=column == 1,
                x=[start_s, end_s],
                y=[gib, gib],
                line={"color": "#cc3311", "dash": dash, "width": 1.5},
                hoverinfo="skip",
                row=1,
                col=column,
            )
    _seconds(figure, drawn)
    figure.update_layout(**style.layout(height=420))
    figure.update_yaxes(**style.axis("", rangemode="tozero"))
    figure.update_yaxes(title={"text": "GiB of a device"}, col=1)
    return figure


def _drawn(plan: Plan) -> tuple[list[list[Event]], list[tuple[float, float]]]:
    simulation = plan.run()
    rows = [simulation.events(number) for number in range(len(plan.stages))]
    return rows, spans(rows, simulation.total_s, len(plan.stages[0].chunks))


def _columns(drawn: Sequence[tuple[float, float]]) -> go.Figure:
    return make_subplots(rows=1, cols=len(drawn), shared_yaxes=True, horizontal_spacing=0.03)


def _seconds(figure: go.Figure, drawn: Sequence[tuple[float, float]]) -> None:
    """Titles and ranges of the time axes."""
    titles = ("seconds: the beginning", "seconds: the end") if len(drawn) > 1 else ("seconds",)
    for column, (title, stretch) in enumerate(zip(titles, drawn, strict=True), start=1):
        figure.update_xaxes(**style.axis(title, range=stretch), col=column)


def _bars(
    plan: Plan, rows: Sequence[Sequence[Event]], start_s: float, end_s: float
) -> tuple[dict[str, list[Bar]], dict[str, list[Bar]]]:
    """Passes by kind, and their parts besides computing, as far as they are within a stretch of time."""
    passes: dict[str, list[Bar]] = {}
    inner: dict[str, list[Bar]] = {}
    for number, (stage, events) in enumerate(zip(plan.stages, rows, strict=True)):
        for event in events:
            if event.end_s <= start_s or event.start_s >= end_s:
                continue
            what = PASSES[event.step.kind]
            chunk = f", chunk {event.step.chunk}" if len(stage.chunks) > 1 else ""
            times = f"{event.start_s:.4g} to {event.end_s:.4g} s"
            told = f"{what} of micro-batch {event.step.micro_batch}{chunk}<br>{times}"
            bar = (event.start_s, event.end_s - event.start_s, _stage(number), told)
            passes.setdefault(what, []).append(bar)
            for name, at_s, seconds in parts(event, stage):
                inner.setdefault(name, []).append((at_s, seconds, _stage(number), f"{name}: {seconds:.4g} s"))
        tail, at_s = stage.times.tail_s, events[-1].end_s
        if tail and at_s < end_s and at_s + tail > start_s:
            bar = (at_s, tail, _stage(number), f"gradients and optimizer: {tail:.4g} s")
            passes.setdefault("gradients and optimizer", []).append(bar)
    return passes, inner


def _limits(plan: Plan) -> tuple[tuple[float, str, str], ...]:
    card = plan.request.cluster.device.memory_bytes
    return (
        (plan.request.capacity_bytes / GIB, "what a plan may use", "dash"),
        (card / GIB, "the device's memory", "solid"),
    )


def _rows(plan: Plan) -> dict[str, Any]:
    names = [_stage(number) for number in range(len(plan.stages))]
    return style.axis(
        "", autorange="reversed", automargin=True, categoryorder="array", categoryarray=names, showgrid=False
    )


def _height(plan: Plan) -> int:
    return min(2400, 150 + 40 * len(plan.stages))


def _shade(number: int, of: int) -> str:
    """From blue to orange along the pipeline."""
    share = number / max(of - 1, 1)
    first, last = (0, 114, 178), (230, 159, 0)
    mixed = [round(a + (b - a) * share) for a, b in zip(first, last, strict=True)]
    return f"rgb({mixed[0]},{mixed[1]},{mixed[2]})"


def _stage(number: int) -> str:
    return f"stage {number}"
