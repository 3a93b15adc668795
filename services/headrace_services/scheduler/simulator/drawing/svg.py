"""The common parts of all pictures: a page, axes with ticks, texts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

INK, MUTED, GRID = "#1c2733", "#66727f", "#e6eaee"
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1c2733", "#b2a700", "#8f99a3")
"""For compared series; with more than nine the colours repeat."""
MARKERS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A linear or logarithmic map from values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(at, self.low))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values inside the range, at most about `most`."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for steps in ((1, 2, 5), (1,)):
                inside = [m * 10.0**p for p in powers for m in steps if self.low <= m * 10.0**p <= self.high]
                if len(inside) <= most:
                    break
            return inside
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis_for(
    values: Iterable[float], start: float, end: float, *, zero: bool = False, log: bool = False
) -> Axis:
    """An axis that holds the values with some room at its ends."""
    known = [value for value in values if math.isfinite(value) and (not log or value > 0)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if log:
        if not known:
            low, high = 1.0, 10.0
        return Axis(low=low / 1.15, high=high * 1.15, start=start, end=end, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    room = (high - low) * 0.06
    return Axis(low=low if zero and low == 0 else low - room, high=high + room, start=start, end=end)


def page(width: float, height: float, parts: Iterable[str], *, title: str) -> str:
    """The whole picture."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif" '
        f'font-size="12" fill="{INK}">'
    )
    back = f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", back, *parts, "</svg>"]) + "\n"


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 12,
    anchor: str = "start",
    fill: str = INK,
    bold: bool = False,
) -> str:
    """A line of text."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}"{weight}>'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, fill: str, *, tip: str = "", more: str = "") -> str:
    """A filled rectangle, with a tooltip if `tip` is not empty."""
    said = f"<title>{escape(tip)}</title>" if tip else ""
    size = f'width="{max(width, 0):.2f}" height="{height:.2f}"'
    return f'<rect x="{x:.2f}" y="{y:.2f}" {size} fill="{fill}"{more}>{said}</rect>'


def line(points: Sequence[tuple[float, float]], colour: str, *, width: float = 1.6, dash: str = "") -> str:
    """A line through points."""
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'


def area(points: Sequence[tuple[float, float]], colour: str, *, opacity: float = 1.0, tip: str = "") -> str:
    """A filled outline."""
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    said = f"<title>{escape(tip)}</title>" if tip else ""
    return f'<polygon points="{drawn}" fill="{colour}" fill-opacity="{opacity:g}">{said}</polygon>'


def marker(x: float, y: float, shape: str, colour: str, *, size: float = 5, tip: str = "") -> str:
    """A point in one of the shapes of `MARKERS`."""
    said = f"<title>{escape(tip)}</title>" if tip else ""
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:g}" fill="{colour}">{said}</circle>'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "triangle": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    }[shape]
    drawn = " ".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in corners)
    return f'<polygon points="{drawn}" fill="{colour}">{said}</polygon>'


def frame(x: Axis, y: Axis, *, x_title: str, y_title: str, percent: str = "") -> list[str]:
    """Grid, ticks and titles of a panel. `percent` names the axes (of `xy`) whose values are shares."""
    left, right, top, bottom = x.start, x.end, y.end, y.start
    parts: list[str] = []
    for value in y.ticks():
        at = y(value)
        parts.append(f'<path d="M{left:.1f},{at:.1f}H{right:.1f}" stroke="{GRID}"/>')
        parts.append(text(left - 8, at + 4, figure(value, percent="y" in percent), anchor="end", fill=MUTED))
    for value in x.ticks():
        at = x(value)
        parts.append(f'<path d="M{at:.1f},{bottom:.1f}v5" stroke="{MUTED}"/>')
        parts.append(
            text(at, bottom + 18, figure(value, percent="x" in percent), anchor="middle", fill=MUTED)
        )
    parts.append(f'<path d="M{left:.1f},{bottom:.1f}H{right:.1f}" stroke="{MUTED}"/>')
    parts.append(text((left + right) / 2, bottom + 36, x_title, anchor="middle"))
    parts.append(text(left - 8, top - 10, y_title))
    return parts


def figure(value: float, *, percent: bool = False) -> str:
    """A tick's label."""
    return f"{value:.3g}" if not percent else f"{100 * value:.3g}%"
