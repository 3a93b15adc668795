"""Draws a coordinate check as an SVG: one line per activation, change over width, both logarithmic.

Written by hand, as the plots of `hdet` are: no plotting library on the training machine. What passes is flat and
green; what fails is steep, red and named.
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from headrace_torch.hydro.coordinate_check.report import ActivationTrend, CoordinateReport

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 420, 76, 54, 210, 44
INK, MUTED, GRID, FLAT, STEEP = "#1c2733", "#66727f", "#e6eaee", "#3a8f5c", "#c0392b"
NAMED = 12


def draw_coordinate_check(report: CoordinateReport, path: str | Path | None = None) -> str:
    """Returns the SVG, and writes it if a path is given."""
    shown = [one for one in report.trends if one.slope is not None and math.isfinite(one.slope)]
    means = {one.name: [sum(row) / len(row) for row in one.changes] for one in shown}
    values = [value for row in means.values() for value in row if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)

    def x(width: float) -> float:
        start, end = math.log(report.widths[0]), math.log(report.widths[-1])
        return LEFT + (math.log(width) - start) / (end - start) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    verdict = report.outcome.value
    failed = {one.name for one in report.failures}
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
            f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        (
            f'<text x="{LEFT}" y="20" font-size="15">Coordinate check {verdict}: {escape(report.optimizer)}, '
            f"lr {report.lr:g}, {report.steps} steps, {report.seeds} seeds</text>"
        ),
        f'<text x="{LEFT}" y="40" fill="{MUTED}">change of each activation, over width; flat is right</text>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(f'<path d="M{LEFT},{at:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="{MUTED}">1e{power}</text>'
        )
    for width, label in zip(report.widths, report.labels, strict=True):
        parts.append(
            f'<text x="{x(width):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="{MUTED}">'
            f"{escape(label)}</text>"
        )
    for one in shown:
        points = " ".join(
            f"{x(width):.1f},{y(value):.1f}"
            for width, value in zip(report.widths, means[one.name], strict=True)
            if value > 0
        )
        color = STEEP if one.name in failed else FLAT
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"><title>{escape(one.name)} '
            f"{one.slope:+.3f}</title></polyline>"
        )
    parts += _names(report, shown)
    parts.append("</svg>")
    drawing = "\n".join(parts) + "\n"
    if path is not None:
        Path(path).write_text(drawing, encoding="utf-8")
    return drawing


def _names(report: CoordinateReport, shown: Sequence[ActivationTrend]) -> list[str]:
    """The steepest slopes, at the right margin."""
    steepest = sorted(shown, key=lambda one: -abs(one.slope or 0.0))[:NAMED]
    left = WIDTH - RIGHT + 16
    found = [f'<text x="{left}" y="{TOP + 6}" fill="{MUTED}">steepest slopes (±{report.tolerance:g})</text>']
    for row, one in enumerate(steepest, start=1):
        color = STEEP if abs(one.slope or 0.0) > report.tolerance else FLAT
        name = one.name if len(one.name) <= 24 else f"…{one.name[-23:]}"
        found.append(
            f'<text x="{left}" y="{TOP + 6 + 18 * row}" fill="{color}">{one.slope:+.2f}  {escape(name)}</text>'
        )
    return found
