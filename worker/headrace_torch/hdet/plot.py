"""Draws a trajectory with its fan as an SVG: no plotting library on the training machine, no network in the file.

One panel per hyperparameter: a band from the lowest to the highest value that replicas explored, and the centre.
The axis is logarithmic wherever all values are positive and span more than a factor of 1.5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from headrace_torch.hdet.records import HyperparameterRecord, SyncReport

WIDTH, PANEL, LEFT, TOP, GAP, BOTTOM = 760, 200, 84, 46, 46, 34
INK, MUTED, GRID, BAND, LINE = "#1c2733", "#66727f", "#e6eaee", "#9dbbd6", "#0072b2"


def draw_trajectory(
    records: Sequence[SyncReport], path: str | Path | None = None, *, title: str = "HDET"
) -> str:
    """Returns the SVG of all hyperparameters over the steps, and writes it if a path is given.

    Raises:
        ValueError: there is no record.
    """
    if not records:
        raise ValueError("there is no record to draw: no sync point was reached")
    names = [one.name for one in records[0].hyperparameters]
    height = TOP + len(names) * (PANEL + GAP) - GAP + BOTTOM
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{escape(title)}</text>',
    ]
    steps = [record.step for record in records]
    for number, name in enumerate(names):
        series = [record.hyperparameter(name) for record in records]
        parts += _panel(name, steps, series, top=TOP + number * (PANEL + GAP))
    parts.append("</svg>")
    drawing = "\n".join(parts) + "\n"
    if path is not None:
        Path(path).write_text(drawing, encoding="utf-8")
    return drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """A linear or logarithmic map from values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Values for grid lines: 1, 2 and 5 times powers of ten within the range, or a few even steps."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            inside = [m * 10.0**p for p in powers for m in (1, 2, 5) if self.low <= m * 10.0**p <= self.high]
            decades = [value for value in inside if f"{value:e}".startswith("1.")]
            return decades if len(decades) > 3 else inside
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        step *= next(m for m in (1, 2, 5, 10) if (self.high - self.low) / (m * step) <= 6)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


def _panel(name: str, steps: Sequence[int], series: Sequence[HyperparameterRecord], *, top: int) -> list[str]:
    low = min(min(one.values) for one in series)
    high = max(max(one.values) for one in series)
    if low == high:
        low, high = low - abs(low) / 10 - 1e-12, high + abs(high) / 10 + 1e-12
    y = _Axis(low=low, high=high, start=top + PANEL, end=top, log=low > 0 and high / low > 1.5)
    x = _Axis(low=0, high=max(steps[-1], 1), start=LEFT, end=WIDTH - 20, log=False)
    parts = [f'<text x="{LEFT}" y="{top - 8}">{escape(name)}</text>']
    for value in y.ticks():
        parts.append(f'<path d="M{LEFT},{y(value):.1f}H{WIDTH - 20}" stroke="{GRID}"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="{MUTED}">{value:.4g}</text>'
        )
    parts.extend(
        f'<text x="{x(value):.1f}" y="{top + PANEL + 18}" text-anchor="middle" fill="{MUTED}">{value:g}</text>'
        for value in x.ticks()
    )
    above = [f"{x(step):.1f},{y(max(one.values)):.1f}" for step, one in zip(steps, series, strict=True)]
    below = [f"{x(step):.1f},{y(min(one.values)):.1f}" for step, one in zip(steps, series, strict=True)]
    middle = [f"{x(step):.1f},{y(one.center):.1f}" for step, one in zip(steps, series, strict=True)]
    parts.append(f'<polygon points="{" ".join(above + below[::-1])}" fill="{BAND}" fill-opacity="0.5"/>')
    parts.append(f'<polyline points="{" ".join(middle)}" fill="none" stroke="{LINE}" stroke-width="1.6"/>')
    return parts
