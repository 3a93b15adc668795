"""Trials on slots over time: one row per slot and one bar per attempt, with a colour and pattern for what ended
it.

The other study of a transfer shares the slots, so its trials are shown too, in their own colour.
"""

from dataclasses import replace
from datetime import datetime
from functools import partial

import plotly.graph_objects as go

from headrace.client import wording
from headrace.report import style
from headrace.report.data import Stay, StudyData

UNITS = (
    (2 * 86400.0, 86400.0, "days"),
    (2 * 3600.0, 3600.0, "hours"),
    (180.0, 60.0, "minutes"),
    (0.0, 1.0, "seconds"),
)
LABELLED_BARS = 400
MARKED_PAUSES = 300


def gantt(data: StudyData) -> go.Figure | None:
    """The figure; None if no trial was ever placed on a slot (ask/tell)."""
    stays = data.stays()
    others = data.other.stays if data.other is not None else ()
    seen = [*stays, *others]
    if not seen:
        return None
    began = data.study.created or min(stay.start for stay in seen)
    length_s = max((max(stay.end for stay in seen) - began).total_seconds(), 1e-9)
    scale, unit = next((scale, unit) for least, scale, unit in UNITS if length_s >= least)
    rows = sorted({(stay.worker, slot) for stay in seen for slot in stay.slots or (0,)})
    label = {row: f"{row[0]} · slot {row[1]}" for row in rows}
    figure = go.Figure()
    groups = [
        (kind, [stay for stay in stays if stay.ending == ending], partial(_describe, data))
        for ending, kind in style.KINDS.items()
    ]
    if data.other is not None:
        kind = replace(style.OTHER, label=f"study {style.text(data.other.name)}")
        groups.append((kind, list(others), partial(_of_other, data.other.name)))
    for kind, group, describe in groups:
        bars = [(stay, (stay.worker, slot)) for stay in group for slot in stay.slots or (0,)]
        if not bars:
            continue
        figure.add_bar(
            orientation="h",
            name=kind.label,
            y=[style.text(label[row]) for _, row in bars],
            base=[_since(began, stay.start) / scale for stay, _ in bars],
            x=[
                max((stay.end - stay.start).total_seconds() / scale, length_s / scale / 2000)
                for stay, _ in bars
            ],
            marker={
                "color": kind.color,
                "line": {"color": "white", "width": 1},
                "pattern": {"shape": kind.pattern, "fgcolor": "white", "size": 6},
            },
            text=[str(stay.trial) for stay, _ in bars] if len(seen) <= LABELLED_BARS else None,
            textposition="inside",
            insidetextanchor="middle",
            textfont={"size": 10},
            constraintext="both",
            hovertext=[describe(stay) for stay, _ in bars],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    _mark_pauses(figure, stays, began, scale, label)
    if data.other is not None and data.other.search_ended is not None:
        place = _since(began, data.other.search_ended) / scale
        figure.add_vline(
            x=place,
            line={"color": style.INK, "dash": "dot", "width": 1},
            annotation={"text": "search ended", "yshift": 14},
        )
    figure.update_layout(
        **style.layout(
            height=min(900, 150 + 46 * len(rows)),
            barmode="overlay",
            bargap=0.25,
            uniformtext={"mode": "hide", "minsize": 8},
        )
    )
    figure.update_xaxes(**style.axis(f"{unit} since the study began", rangemode="tozero"))
    figure.update_yaxes(
        **style.axis("", autorange="reversed", categoryorder="array", automargin=True),
        categoryarray=[style.text(label[row]) for row in rows],
    )
    return figure


def _mark_pauses(
    figure: go.Figure, stays: list[Stay], began: datetime, scale: float, label: dict[tuple[str, int], str]
) -> None:
    paused = [
        (stay, (stay.worker, slot))
        for stay in stays
        if stay.ending == "paused"
        for slot in stay.slots or (0,)
    ]
    if not paused:
        return
    figure.add_scatter(
        mode="markers",
        name="pause",
        visible=True if len(paused) <= MARKED_PAUSES else "legendonly",  # a click on the legend shows them
        x=[_since(began, stay.end) / scale for stay, _ in paused],
        y=[style.text(label[row]) for _, row in paused],
        marker={"symbol": "line-ns-open", "size": 22, "color": style.INK, "line": {"width": 2}},
        hoverinfo="skip",
    )


def _describe(data: StudyData, stay: Stay) -> str:
    trial = data.by_number.get(stay.trial)
    length = wording.duration((stay.end - stay.start).total_seconds())
    lines = [f"<b>trial {stay.trial}</b> for {length}, then {style.kind_of(stay.ending).label}"]
    if stay.detail:
        lines.append(style.text(stay.detail.splitlines()[0][:110]))
    if trial is not None:
        lines.append(style.text(wording.params(trial.params)))
    return "<br>".join(lines)


def _of_other(name: str, stay: Stay) -> str:
    length = wording.duration((stay.end - stay.start).total_seconds())
    of_what = f"<b>trial {stay.trial} of study {style.text(name)}</b>"
    return f"{of_what} for {length}, then {style.kind_of(stay.ending).label}"


def _since(began: datetime, moment: datetime) -> float:
    return (moment - began).total_seconds()
