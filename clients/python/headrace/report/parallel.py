"""Parallel coordinates: one axis per parameter, one line per trial, darker for a better value of the first
objective.

A parameter on a logarithmic domain gets a logarithmic axis. A conditional parameter that a trial does not have
is drawn in a separate place below the axis's values, labelled "none".
"""

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from headrace.client import wording
from headrace.client.model import TrialInfo, Value
from headrace.report import style
from headrace.report.data import StudyData
from headrace.spec import CategoricalDomain

ROOMY_AXES = 9
ROOMY_LABEL = 14
"""With more axes or longer names than these, the names are slanted so that they do not overlap."""
LONGEST_LABEL = 22
SLANT = -25
LETTER_PX = 7.5
AXIS_PX = 78
"""The distance between axes if there are many."""


def parallel_coordinates(data: StudyData) -> go.Figure:
    """The figure; trials without a finite value are left out."""
    values = {t.number: data.outcome.values(t)[data.metric] for t in data.trials}
    trials = [t for t in data.trials if math.isfinite(_known(values[t.number]))]
    # The best are drawn last, on top.
    trials.sort(key=lambda t: _known(values[t.number]), reverse=not data.maximize)
    dimensions = [_dimension(data, name, trials) for name in data.study.spec.space]
    dimensions.append(_steps(data, trials))
    scales = _objectives(data, trials)
    scale = scales[0]
    dimensions += scales
    crowded = len(dimensions) > ROOMY_AXES or any(len(d["label"]) > ROOMY_LABEL for d in dimensions)
    for dimension in dimensions:  # ticks are plain text, unlike all other text in a figure
        dimension["ticktext"] = [style.short(tick, 12 if crowded else 18) for tick in dimension["ticktext"]]
    figure = go.Figure(
        go.Parcoords(
            line={
                "color": scale["values"],
                "colorscale": style.SEQUENTIAL,
                "reversescale": not data.maximize,
                "showscale": len(set(scale["values"])) > 1,
                "colorbar": {
                    "title": {"text": style.text(style.short(data.metric, 50)), "side": "right"},
                    "thickness": 12,
                    "outlinewidth": 0,
                    "tickvals": scale["tickvals"],
                    "ticktext": scale["ticktext"],
                },
            },
            dimensions=dimensions,
            labelangle=SLANT if crowded else 0,
            labelfont={"size": 13, "color": style.INK},
            tickfont={"size": 11, "color": style.MUTED},
            rangefont={"size": 1, "color": "rgba(0,0,0,0)"},
        )
    )
    longest = max(len(d["label"]) for d in dimensions)
    above = 60 + (round(longest * LETTER_PX * math.sin(math.radians(-SLANT)) / 2) if crowded else 0)
    margin = {"l": 90, "r": 60, "t": above, "b": 30}
    figure.update_layout(**{**style.layout(height=400 + above), "margin": margin})
    if len(dimensions) > ROOMY_AXES:
        figure.update_layout(width=AXIS_PX * (len(dimensions) - 1) + 240)  # the page scrolls if it has less
    return figure


def _objectives(data: StudyData, trials: Sequence[TrialInfo]) -> list[dict[str, Any]]:
    """An axis for each objective: the values that count."""
    rows = [data.outcome.values(trial) for trial in trials]
    metrics = [objective.metric for objective in data.study.spec.objectives]
    return [_scale(metric, [row[metric] for row in rows]) for metric in metrics]


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _scale(metric: str, values: Sequence[float | None]) -> dict[str, Any]:
    present = [value for value in values if value is not None and math.isfinite(value)]
    finite = [value if value is not None and math.isfinite(value) else None for value in values]
    return _numeric(metric, finite, log=style.steep(present))


def _dimension(data: StudyData, name: str, trials: Sequence[TrialInfo]) -> dict[str, Any]:
    domain = data.study.spec.space[name]
    values = [trial.params.get(name) for trial in trials]
    if isinstance(domain, CategoricalDomain) or any(isinstance(v, str | bool) for v in values):
        choices = list(domain.values) if isinstance(domain, CategoricalDomain) else []
        return _categorical(name, values, choices)
    return _numeric(name, values, log=bool(getattr(domain, "log", False)))


def _steps(data: StudyData, trials: Sequence[TrialInfo]) -> dict[str, Any]:
    """The axis of the steps that a trial ran, with the rungs as ticks."""
    ladder = data.study.spec.rungs()
    steps: list[Value | None] = [trial.step for trial in trials]
    log = ladder[-1] / ladder[0] >= 8 and min(trial.step for trial in trials) > 0
    dimension = _numeric("steps", steps, log=log)
    low, high = dimension["range"]
    ticks = [(math.log10(milestone) if log else milestone, str(milestone)) for milestone in ladder]
    shown = [tick for tick in ticks if low <= tick[0] <= high]
    return {**dimension, "tickvals": [place for place, _ in shown], "ticktext": [text for _, text in shown]}


def _categorical(name: str, values: Sequence[Value | None], choices: Sequence[Value]) -> dict[str, Any]:
    labels = [wording.scalar(choice) for choice in choices]
    labels += sorted({wording.scalar(v) for v in values if v is not None} - set(labels))
    places = {label: float(place) for place, label in enumerate(labels)}
    missing = -1.0
    ticks = [(places[label], label) for label in labels]
    if any(v is None for v in values):
        ticks.insert(0, (missing, "none"))
    return {
        "label": style.text(style.short(name, LONGEST_LABEL)),
        "values": [missing if v is None else places[wording.scalar(v)] for v in values],
        "tickvals": [place for place, _ in ticks],
        "ticktext": [label for _, label in ticks],
        "range": [ticks[0][0] - 0.3, ticks[-1][0] + 0.3],
    }


def _numeric(name: str, values: Sequence[Value | None], *, log: bool) -> dict[str, Any]:
    present = [float(v) for v in values if isinstance(v, int | float)]
    if not present:
        return _categorical(name, values, [])
    log = log and min(present) > 0

    def place(value: float) -> float:
        return math.log10(value) if log else value

    low, high = place(min(present)), place(max(present))
    span = (high - low) or 1.0
    missing = low - 0.18 * span
    marks = [low + span * i / 4 for i in range(5)] if high > low else [low]
    whole = all(isinstance(v, int) for v in values if v is not None)
    ticks = [(mark, _tick(10**mark if log else mark, whole=whole)) for mark in marks]
    if any(v is None for v in values):
        ticks.insert(0, (missing, "none"))
    return {
        "label": style.text(style.short(name, LONGEST_LABEL)),
        "values": [place(float(v)) if isinstance(v, int | float) else missing for v in values],
        "tickvals": [mark for mark, _ in ticks],
        "ticktext": [text for _, text in ticks],
        "range": [ticks[0][0] - 0.03 * span, high + 0.03 * span],
    }


def _tick(value: float, *, whole: bool) -> str:
    return str(round(value)) if whole else wording.number(value, 3)
