"""Colours, symbols and fonts of a report, in one place.

The colours are those of Okabe and Ito, which readers with any common colour vision can distinguish. Every kind
also has its own line, marker or pattern, so that colour is never the only sign.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

INK = "#1c2733"
MUTED = "#66727f"
GRID = "#e6eaee"
BEST = "#d55e00"
BASELINE = "#1c2733"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"

SEQUENTIAL = [[0.0, "#d9e2ea"], [0.35, "#9dbbd6"], [0.7, "#3f7fb5"], [1.0, "#08306b"]]
"""From the worst value to the best: light to dark, so it also works in print."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How trials with one outcome are drawn."""

    label: str
    color: str
    symbol: str
    pattern: str


KINDS = {
    "completed": Kind("completed", "#0072b2", "circle", ""),
    "running": Kind("running", "#009e73", "triangle-right", ""),
    "paused": Kind("paused", "#8f99a3", "line-ns-open", ""),
    "stopped_early": Kind("stopped early", "#aab3bc", "square-open", ""),
    "failed": Kind("failed", "#cc79a7", "x", "x"),
    "cancelled": Kind("cancelled", "#8d99a5", "diamond-open", "/"),
    "infeasible": Kind("infeasible", "#8d99a5", "x-thin", "x"),
    "interrupted": Kind("interrupted by a machine", "#e69f00", "cross", "\\"),
    "pending": Kind("pending", "#c3c9cf", "circle-open", ""),
}


OTHER = Kind("another study", "#56b4e9", "circle", ".")
"""Trials of the other study of a transfer."""


def kind_of(outcome: str) -> Kind:
    """The style of an outcome. An outcome that this version does not know looks like a running trial."""
    return (
        KINDS["running" if outcome == "resumed" else outcome]
        if outcome in (*KINDS, "resumed")
        else KINDS["running"]
    )


def text(value: object) -> str:
    """Text for a figure. Plotly interprets a few HTML tags in it, so it is escaped like HTML (except quotes)."""
    return escape(str(value), quote=False)


def short(name: str, limit: int) -> str:
    """A name in at most this many characters, with its middle left out if it is too long."""
    if len(name) <= limit:
        return name
    tail = (limit - 1) // 2
    return f"{name[: limit - 1 - tail]}…{name[-tail:]}"


def layout(*, height: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures have in common."""
    return {
        "height": height,
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": {"l": 70, "r": 30, "t": 30, "b": 60},
        "hoverlabel": {
            "bgcolor": "white",
            "bordercolor": MUTED,
            "font": {"family": FONT, "size": 12},
            "align": "left",
        },
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        **more,
    }


def steep(values: Sequence[float]) -> bool:
    """True for values that a linear axis would squeeze together at one end."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > 30


def axis(title: str, **more: Any) -> dict[str, Any]:
    """A labelled axis with an unobtrusive grid."""
    return {
        "title": {"text": text(title)},
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": MUTED,
        "showline": True,
        "ticks": "outside",
        "tickcolor": MUTED,
        **more,
    }
