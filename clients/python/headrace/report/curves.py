"""The learning curves: one line per trial, rungs as vertical lines, ends marked by what ended the trial.

All trials with the same outcome share one trace, with a gap between trials, so that a study with thousands stays
fast.
"""

import math
from collections.abc import Iterable, Mapping

import plotly.graph_objects as go

from headrace.client import wording
from headrace.client.model import TrialInfo
from headrace.report import style
from headrace.report.data import StudyData

ORDER = ("stopped_early", "paused", "cancelled", "infeasible", "pending", "failed", "running", "completed")
"""Drawn in this order, so that the important ones are on top."""


MOST_RUNG_LABELS = 6
"""The most rungs that are all labelled; with more, only some are."""
Curve = list[tuple[int, float]]


def learning_curves(data: StudyData) -> go.Figure:
    """The figure."""
    curves = data.curves()
    marked = data.outcome.marked()
    figure = go.Figure()
    plain = [t for t in data.trials if curves[t.number] and not t.baseline and t.number not in marked]
    for outcome in ORDER:
        group = [t for t in plain if style.kind_of(t.outcome) is style.KINDS[outcome]]
        if group:
            _add_group(figure, data, group, curves, outcome)
    for trial in data.trials:
        if curves[trial.number] and trial.baseline:
            _add_one(
                figure, data, trial, curves[trial.number], "baseline", style.BASELINE, dash="dash", width=2
            )
    for trial in data.trials:
        if curves[trial.number] and trial.number in marked:
            what = "Pareto front" if data.outcome.several else "best"
            label = f"{what} (trial {trial.number}{', failed' if trial.flaw == 'failed' else ''})"
            _add_one(figure, data, trial, curves[trial.number], label, style.BEST, dash="solid", width=3.5)
    figure.update_layout(**style.layout(height=520, hovermode="closest"))
    _axes(figure, data, [value for curve in curves.values() for _, value in curve])
    return figure


def _add_group(
    figure: go.Figure,
    data: StudyData,
    trials: Iterable[TrialInfo],
    curves: Mapping[int, Curve],
    outcome: str,
) -> None:
    kind = style.KINDS[outcome]
    x: list[int | None] = []
    y: list[float | None] = []
    hover: list[str] = []
    ends: list[tuple[int, float, str]] = []
    for trial in trials:
        about = describe(data, trial)
        points = curves[trial.number]
        for step, value in points:
            x.append(step)
            y.append(value)
            hover.append(_point(data, step, value) + about)
        x.append(None)
        y.append(None)
        hover.append("")
        ends.append((*points[-1], _point(data, *points[-1]) + about))
    quiet = outcome in ("stopped_early", "paused", "cancelled", "infeasible", "pending")
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        name=kind.label,
        legendgroup=outcome,
        showlegend=False,
        line={"color": kind.color, "width": 1.2 if quiet else 1.8},
        opacity=0.75 if quiet else 0.9,
        text=hover,
        hovertemplate="%{text}<extra></extra>",
    )
    figure.add_scatter(
        x=[step for step, _, _ in ends],
        y=[value for _, value, _ in ends],
        mode="markers",
        name=kind.label,
        legendgroup=outcome,
        marker={
            "color": kind.color,
            "symbol": kind.symbol,
            "size": 8,
            "line": {"color": kind.color, "width": 1.5},
        },
        text=[about for _, _, about in ends],
        hovertemplate="%{text}<extra></extra>",
    )


def _add_one(
    figure: go.Figure,
    data: StudyData,
    trial: TrialInfo,
    points: Curve,
    label: str,
    color: str,
    *,
    dash: str,
    width: float,
) -> None:
    about = describe(data, trial)
    figure.add_scatter(
        x=[step for step, _ in points],
        y=[value for _, value in points],
        mode="lines+markers" if len(points) < 60 else "lines",
        name=label,
        line={"color": color, "width": width, "dash": dash},
        marker={"color": color, "size": 5},
        text=[_point(data, step, value) + about for step, value in points],
        hovertemplate="%{text}<extra></extra>",
    )


def describe(data: StudyData, trial: TrialInfo) -> str:
    """A trial for the hover box: its outcome, why, and its configuration."""
    head = "baseline, " if trial.baseline else ""
    lines = [f"<b>trial {trial.number}</b> {head}{style.kind_of(trial.outcome).label}"]
    why = data.why(trial)
    if why:
        lines.append(style.text(_cut(why, 110)))
    lines += [
        f"{style.text(name)} = {style.text(wording.scalar(value))}" for name, value in trial.params.items()
    ]
    return "<br>".join(lines)


def _point(data: StudyData, step: int, value: float) -> str:
    return f"{style.text(data.metric)} {wording.number(value)} at step {step}<br>"


def _axes(figure: go.Figure, data: StudyData, values: list[float]) -> None:
    ladder = [rung.milestone for rung in data.study.rungs] or list(data.study.spec.rungs())
    spread = ladder[-1] / ladder[0] >= 8 if ladder else False
    ticks = {"tickvals": ladder, "ticktext": [str(milestone) for milestone in ladder]} if spread else {}
    figure.update_xaxes(**style.axis("step", type="log" if spread else "linear", **ticks))
    goal = "higher is better" if data.maximize else "lower is better"
    figure.update_yaxes(
        **style.axis(f"{data.metric} ({goal})", type="log" if style.steep(values) else "linear")
    )
    every = -(-len(ladder) // MOST_RUNG_LABELS)
    for index, milestone in enumerate(ladder):
        figure.add_vline(x=milestone, line={"color": style.MUTED, "width": 1, "dash": "dot"}, opacity=0.6)
        if (len(ladder) - 1 - index) % every:
            continue
        figure.add_annotation(
            x=_on_axis(milestone, log=spread),
            y=0,
            yref="paper",
            yanchor="bottom",
            xanchor="right" if index == len(ladder) - 1 else "left",
            text=f" rung at step {milestone} ",
            showarrow=False,
            font={"size": 11, "color": style.MUTED},
        )


def _on_axis(value: int, *, log: bool) -> float:
    # An annotation on a logarithmic axis is positioned by the exponent; lines are not.
    return math.log10(value) if log else float(value)


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else line[: limit - 1] + "…"
