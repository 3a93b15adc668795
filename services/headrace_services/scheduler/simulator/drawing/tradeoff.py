"""What a policy saves and what it risks: a point for each policy, or for each value of a setting, with intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_services.scheduler.simulator.drawing import svg
from headrace_services.scheduler.simulator.statistics import Estimate

WIDTH, PANEL, TOP, LEFT = 860.0, 300.0, 64.0, 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One policy, or one value of a setting."""

    label: str
    cost: Estimate
    """The share of run-all's slot time."""
    panels: tuple[Estimate, ...]


def tradeoff_svg(
    points: Sequence[Point], panels: Sequence[tuple[str, str]], *, title: str, joined: bool
) -> str:
    """The picture: a panel for each of `panels` (its title, and `percent` or nothing), side by side.

    `joined` draws a line through the points in order, for a setting that was swept.
    """
    width = (WIDTH - LEFT) / len(panels) - 30
    parts = [svg.text(LEFT - 8, 24, title, size=15, bold=True)]
    costs = [value for point in points for value in _ends(point.cost)]
    for place, (name, kind) in enumerate(panels):
        left = LEFT + place * (width + 84)
        x = svg.axis_for(costs, left, left + width, zero=True)
        values = [value for point in points for value in _ends(point.panels[place])]
        y = svg.axis_for(values, TOP + PANEL, TOP, zero=True)
        parts += svg.frame(
            x, y, x_title="slot time against run-all", y_title=name, percent="x" + "y" * (kind == "percent")
        )
        middles = [
            (x(point.cost.mean), y(point.panels[place].mean or 0.0))
            for point in points
            if point.cost.mean is not None and point.panels[place].mean is not None
        ]
        if joined and len(middles) > 1:
            parts.append(svg.line(middles, "#c3c9cf", width=1.4))
        placed: list[tuple[float, float]] = []
        for number, point in enumerate(points):
            parts += _point(point, place, number, x, y, placed)
    return svg.page(LEFT + len(panels) * (width + 84) - 50, TOP + PANEL + 60, parts, title=title)


def _ends(estimate: Estimate) -> list[float]:
    return [value for value in (estimate.low, estimate.mean, estimate.high) if value is not None]


def _point(
    point: Point, place: int, number: int, x: svg.Axis, y: svg.Axis, placed: list[tuple[float, float]]
) -> list[str]:
    cost, value = point.cost, point.panels[place]
    if cost.mean is None or value.mean is None:
        return []
    colour = svg.SERIES[number % len(svg.SERIES)]
    at = x(cost.mean), y(value.mean)
    parts: list[str] = []
    if value.low is not None and value.high is not None:
        parts.append(svg.line([(at[0], y(value.low)), (at[0], y(value.high))], colour, width=1.4))
    if cost.low is not None and cost.high is not None:
        parts.append(svg.line([(x(cost.low), at[1]), (x(cost.high), at[1])], colour, width=1.4))
    tip = f"{point.label}: {cost.mean:.1%} of run-all's slot time, {value.mean:.4g}"
    parts.append(svg.marker(*at, svg.MARKERS[number % len(svg.MARKERS)], colour, tip=tip))
    label_y = at[1] - 9
    while any(abs(label_y - other[1]) < 13 and abs(at[0] - other[0]) < 110 for other in placed):
        label_y -= 13
    placed.append((at[0], label_y))
    anchor = "end" if at[0] > x.end - 80 else "start"
    offset = -8 if anchor == "end" else 8
    parts.append(svg.text(at[0] + offset, label_y, point.label, size=11, anchor=anchor, fill=colour))
    return parts
