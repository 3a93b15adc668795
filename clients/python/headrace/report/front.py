"""The Pareto front: every trial's objectives against each other, and the trials that no other one beats.

With more than two objectives, each pair has its own figure, up to six of them.
"""

import math
from itertools import combinations

import plotly.graph_objects as go

from headrace.client import wording
from headrace.client.model import TrialInfo
from headrace.report import style
from headrace.report.data import StudyData
from headrace.spec import Objective

MOST_PAIRS = 6


def pareto_fronts(data: StudyData) -> list[go.Figure]:
    """One figure per pair of objectives; none if there is only one objective, or the front is left out."""
    if not data.outcome.several or data.outcome.front_left_out:
        return []
    pairs = list(combinations(data.study.spec.objectives, 2))[:MOST_PAIRS]
    return [_figure(data, across, up) for across, up in pairs]


def pareto_front(data: StudyData, across: str, up: str) -> go.Figure:
    """The figure for two objectives, by their metrics. Raises KeyError for others."""
    objectives = {one.metric: one for one in data.study.spec.objectives}
    return _figure(data, objectives[across], objectives[up])


def _figure(data: StudyData, across: Objective, up: Objective) -> go.Figure:
    on_front = {trial.number for trial in data.study.front}
    figure = go.Figure()
    groups = [
        ("infeasible", "#c3c9cf", "x-thin-open", [t for t in data.trials if t.feasible is False]),
        (
            "dominated",
            style.KINDS["completed"].color,
            "circle-open",
            [t for t in data.trials if t.feasible is not False and t.number not in on_front],
        ),
    ]
    for label, color, symbol, trials in groups:
        shown = [t for t in trials if not t.baseline and _is_measured(t, across, up)]
        if shown:
            figure.add_trace(_points(data, shown, across, up, label, color, symbol, "markers", 7))
    front = sorted(
        (t for t in data.study.front if _is_measured(t, across, up)),
        key=lambda t: t.objective_values[across.metric],
    )
    if front:
        mode = "lines+markers" if len(data.study.spec.objectives) == 2 else "markers"
        figure.add_trace(_points(data, front, across, up, "Pareto front", style.BEST, "circle", mode, 10))
    baseline = data.study.baseline
    if baseline is not None and _is_measured(baseline, across, up):
        figure.add_trace(
            _points(data, [baseline], across, up, "baseline", style.BASELINE, "diamond", "markers", 11)
        )
    figure.update_layout(**style.layout(height=460, hovermode="closest"))
    figure.update_xaxes(**style.axis(f"{across.metric} ({across.goal})", **_scale(data, across)))
    figure.update_yaxes(**style.axis(f"{up.metric} ({up.goal})", **_scale(data, up)))
    return figure


def _points(
    data: StudyData,
    trials: list[TrialInfo],
    across: Objective,
    up: Objective,
    label: str,
    color: str,
    symbol: str,
    mode: str,
    size: int,
) -> go.Scatter:
    return go.Scatter(
        x=[trial.objective_values[across.metric] for trial in trials],
        y=[trial.objective_values[up.metric] for trial in trials],
        mode=mode,
        name=label,
        marker={"color": color, "symbol": symbol, "size": size, "line": {"color": color, "width": 1.2}},
        line={"color": color, "width": 1.5, "shape": "linear"},
        text=[_hover(data, trial) for trial in trials],
        hovertemplate="%{text}<extra></extra>",
    )


def _hover(data: StudyData, trial: TrialInfo) -> str:
    values = wording.objectives(trial, data.study.spec.objectives)
    return (
        f"trial {trial.number}: {style.text(values)}<br>{style.text(wording.params(trial.params))}"
        f"<br>{style.text(data.why(trial))}"
    )


def _is_measured(trial: TrialInfo, *objectives: Objective) -> bool:
    return all(math.isfinite(trial.objective_values.get(one.metric, math.nan)) for one in objectives)


def _scale(data: StudyData, objective: Objective) -> dict[str, str]:
    values = [
        trial.objective_values[objective.metric] for trial in data.trials if _is_measured(trial, objective)
    ]
    return {"type": "log"} if style.steep(values) else {}
