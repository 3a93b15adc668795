"""Lineage: the parameters of a population over the steps, who copied whom, and the schedule of the best.

There is one panel per parameter that changed. A line is a member; a dotted step is a copy, from the donor's
value to the mutated one. The thick line is the schedule with which the best member's state was trained.
"""

from collections.abc import Mapping

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from headrace.client.lineage import Stretch, changes, own_stretches, schedule
from headrace.client.model import TrialInfo
from headrace.report import style
from headrace.report.data import StudyData
from headrace.spec import CategoricalDomain, Value

PANEL_HEIGHT = 230
PANEL_TITLE = 26
"""How many characters of a parameter's name fit next to its panel."""


def lineage(data: StudyData) -> go.Figure | None:
    """The figure; None if no member copied another."""
    members = [trial for trial in data.trials if not trial.baseline]
    names = [name for name in data.study.spec.space if changes(members, name)]
    if not names:
        return None
    figure = make_subplots(
        rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=0.08 / len(names) ** 0.5
    )
    best = data.study.leader
    for row, name in enumerate(names, start=1):
        _members(figure, row, members, name)
        _copies(figure, row, data.by_number, name)
        if best is not None and best.number in data.by_number:
            _schedule(figure, row, schedule(data.by_number, best.number), name, best.number)
        domain = data.study.spec.space[name]
        log = not isinstance(domain, CategoricalDomain) and domain.log
        figure.update_yaxes(
            **style.axis(style.short(name, PANEL_TITLE), type="log" if log else None), row=row, col=1
        )
        figure.update_xaxes(
            **style.axis("step" if row == len(names) else "", rangemode="tozero"), row=row, col=1
        )
    figure.update_layout(**style.layout(height=110 + PANEL_HEIGHT * len(names)))
    return figure


def _members(figure: go.Figure, row: int, members: list[TrialInfo], name: str) -> None:
    x: list[int | None] = []
    y: list[Value | None] = []
    hover: list[str] = []
    for trial in members:
        for stretch in own_stretches(trial):
            if name not in stretch.params:
                continue
            value = stretch.params[name]
            about = (
                f"trial {trial.number}, steps {stretch.start} to {stretch.end}<br>{style.text(name)} {value}"
            )
            x += [stretch.start, stretch.end, None]
            y += [value, value, None]
            hover += [about, about, ""]
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        name="member",
        legendgroup="member",
        showlegend=row == 1,
        line={"color": "#0072b2", "width": 1.4},
        opacity=0.6,
        text=hover,
        hovertemplate="%{text}<extra></extra>",
        row=row,
        col=1,
    )


def _copies(figure: go.Figure, row: int, trials: Mapping[int, TrialInfo], name: str) -> None:
    x: list[int | None] = []
    y: list[Value | None] = []
    for trial in trials.values():
        for copied in trial.lineage:
            donor = trials.get(copied.donor)
            lent = next((s for s in own_stretches(donor) if s.end >= copied.step), None) if donor else None
            if lent is None or name not in lent.params or name not in copied.params:
                continue
            x += [copied.step, copied.step, None]
            y += [lent.params[name], copied.params[name], None]
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        name="copied and mutated",
        legendgroup="copies",
        showlegend=row == 1,
        line={"color": style.MUTED, "width": 1.2, "dash": "dot"},
        hoverinfo="skip",
        row=row,
        col=1,
    )


def _schedule(figure: go.Figure, row: int, stretches: list[Stretch], name: str, best: int) -> None:
    known = [stretch for stretch in stretches if name in stretch.params]
    figure.add_scatter(
        x=[step for stretch in known for step in (stretch.start, stretch.end)],
        y=[stretch.params[name] for stretch in known for _ in range(2)],
        mode="lines",
        name=f"schedule of the best (trial {best})",
        legendgroup="schedule",
        showlegend=row == 1,
        line={"color": style.BEST, "width": 3.5},
        text=[f"trained by trial {stretch.trial}" for stretch in known for _ in range(2)],
        hovertemplate="step %{x}: %{y}<br>%{text}<extra></extra>",
        row=row,
        col=1,
    )
