"""How the regret of the best value so far falls with the slot time spent: policies over seeds."""

from collections.abc import Mapping, Sequence
from enum import Enum

import numpy as np

from headrace_services.scheduler.simulator.drawing import svg

LEFT, WIDTH, TOP, PANEL = 86.0, 620.0, 64.0, 330.0
MOMENTS = 120

Trace = Sequence[tuple[float, float]]
"""Slot-seconds spent, and the regret from then on."""


class Band(Enum):
    """What is drawn over the seeds: the mean with its 95% interval, or the median with the quartiles."""

    INTERVAL = "interval"
    QUARTILES = "quartiles"


def regret_svg(
    traces: Mapping[str, Sequence[Trace]],
    *,
    title: str,
    unit: tuple[float, str],
    floor: float,
    band: Band = Band.INTERVAL,
) -> str:
    """The regret of each policy over seeds, in the middle and in a band; both axes logarithmic.

    `traces` has one trace for each seed, from its first report. Before a seed's first report the policy is not
    drawn. `floor` is the regret that counts as zero: smaller values are drawn there.
    """
    firsts = [seed[0][0] for seeds in traces.values() for seed in seeds if seed]
    lasts = [seed[-1][0] for seeds in traces.values() for seed in seeds if seed]
    grid = np.geomspace(max(min(firsts), 1e-9), max(lasts) * 1.05, MOMENTS)
    drawn: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = {}
    for name, seeds in traces.items():
        start = max(seed[0][0] for seed in seeds)
        moments = grid[grid >= start]
        values = np.array([_sampled(seed, moments) for seed in seeds])
        drawn[name] = moments, *_over_seeds(values, band)
    highest = max(float(high.max()) for _, _, _, high in drawn.values())
    y = svg.Axis(low=floor, high=highest * 1.2, start=TOP + PANEL, end=TOP, log=True)
    x = svg.Axis(low=grid[0] / unit[0], high=grid[-1] / unit[0], start=LEFT, end=LEFT + WIDTH, log=True)
    parts = [svg.text(LEFT - 8, 24, title, size=15, bold=True)]
    parts += svg.frame(x, y, x_title=unit[1], y_title="regret of the best value so far")
    for number, (name, (moments, middle, low, high)) in enumerate(drawn.items()):
        colour = svg.SERIES[number % len(svg.SERIES)]
        upper = [(x(at / unit[0]), y(max(value, floor))) for at, value in zip(moments, high, strict=True)]
        lower = [(x(at / unit[0]), y(max(value, floor))) for at, value in zip(moments, low, strict=True)]
        parts.append(svg.area(upper + lower[::-1], colour, opacity=0.12))
        centre = [(x(at / unit[0]), y(max(value, floor))) for at, value in zip(moments, middle, strict=True)]
        parts.append(svg.line(centre, colour, dash="" if number < 5 else "5 3"))
        at = TOP + 12 + 19 * number
        dash = "" if number < 5 else "5 3"
        parts.append(
            svg.line([(LEFT + WIDTH + 18, at - 4), (LEFT + WIDTH + 44, at - 4)], colour, width=2.4, dash=dash)
        )
        parts.append(svg.text(LEFT + WIDTH + 50, at, name))
    return svg.page(LEFT + WIDTH + 220, TOP + PANEL + 56, parts, title=title)


def _over_seeds(values: np.ndarray, band: Band) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The middle, the low end and the high end of the band."""
    if band is Band.QUARTILES:
        low, middle, high = np.percentile(values, [25, 50, 75], axis=0)
        return middle, low, high
    middle = values.mean(axis=0)
    half = 1.96 * values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0 * middle
    return middle, np.maximum(middle - half, 0), middle + half


def _sampled(trace: Trace, moments: np.ndarray) -> np.ndarray:
    spent = np.array([at for at, _ in trace])
    values = np.array([value for _, value in trace])
    return values[np.searchsorted(spent, moments, side="right") - 1]
