"""One simulation: a lane for each slot with its trials' attempts, and how many trials were on their way to each
rung."""

from collections import defaultdict
from collections.abc import Sequence

from headrace_services.scheduler.simulator.drawing import svg
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.record import Segment, Stay
from headrace_services.scheduler.simulator.study import StudySimulation

LEFT, WIDTH, TOP, OCCUPANCY, BOTTOM = 130.0, 900.0, 74.0, 150.0, 48.0
MOST_LANES = 64
MOST_STAYS = 4000
COLOURS = {
    "completed": "#0072b2",
    "paused": "#9dbbd6",
    "stopped_early": "#c3c9cf",
    "interrupted": "#e69f00",
    "failed": "#cc79a7",
    "cancelled": "#8d99a5",
}
"""By the way in which an attempt ended."""
RUNGS = ("#d9e2ea", "#08306b")
"""From the first rung's colour to the last rung's."""


def gantt_svg(simulation: Simulation, study: StudySimulation, *, title: str, unit: tuple[float, str]) -> str:
    """The picture. `unit` is the length of its time unit in seconds, and the unit's name."""
    lanes = [
        (machine.id, index, f"{machine.name}" + (f" · {index}" if machine.slots > 1 else ""))
        for machine in simulation.cluster.machines.values()
        for index in range(machine.slots)
    ]
    shown = lanes[:MOST_LANES]
    height = 22.0 if len(shown) <= 16 else 14.0 if len(shown) <= 32 else 9.0
    end = study.record.end_s or 1.0
    x = svg.Axis(low=0.0, high=end, start=LEFT, end=LEFT + WIDTH)
    stays = sorted(study.record.stays, key=lambda stay: stay.end_s - stay.start_s, reverse=True)[:MOST_STAYS]
    parts = [svg.text(LEFT, 24, title, size=15, bold=True), *_legend(study, len(lanes) - len(shown))]
    at = {(machine, index): TOP + place * height for place, (machine, index, _) in enumerate(shown)}
    for place, (_, _, name) in enumerate(shown):
        y = TOP + place * height
        parts.append(svg.box(LEFT, y, WIDTH, height - 1, "#f6f8fa"))
        if height > 12 or place % 4 == 0:
            parts.append(svg.text(LEFT - 8, y + height / 2 + 4, name, anchor="end", fill=svg.MUTED, size=11))
    for stay in stays:
        for index in stay.slots:
            if (stay.worker, index) in at:
                parts += _stay(stay, x, at[stay.worker, index], height - 1, unit)
    below = TOP + len(shown) * height + 44
    parts += _occupancy(study, svg.Axis(low=0, high=end / unit[0], start=LEFT, end=LEFT + WIDTH), below, unit)
    return svg.page(LEFT + WIDTH + 30, below + OCCUPANCY + BOTTOM, parts, title=title)


def _legend(study: StudySimulation, hidden: int) -> list[str]:
    parts: list[str] = []
    at = LEFT
    endings = {stay.ending for stay in study.record.stays}
    for ending, colour in COLOURS.items():
        if ending in endings:
            words = ending.replace("_", " ")
            parts += [svg.box(at, 38, 12, 12, colour), svg.text(at + 17, 48, words)]
            at += 36 + 6.4 * len(words)
    if hidden:
        parts.append(
            svg.text(LEFT + WIDTH, 48, f"{hidden} more slots not drawn", anchor="end", fill=svg.MUTED)
        )
    return parts


def _stay(stay: Stay, x: svg.Axis, y: float, height: float, unit: tuple[float, str]) -> list[str]:
    left, width = x(stay.start_s), x(stay.end_s) - x(stay.start_s)
    tip = (
        f"trial {stay.trial}, steps {stay.from_step} to {stay.to_step}, {stay.start_s / unit[0]:.4g} to "
        f"{stay.end_s / unit[0]:.4g} {unit[1]}, then {stay.ending.replace('_', ' ')}"
    )
    colour = COLOURS.get(stay.ending, "#8d99a5")
    parts = [
        svg.box(left, y, max(width, 0.6), height, colour, tip=tip, more=' stroke="#fff" stroke-width="0.6"')
    ]
    if width > 7 * len(str(stay.trial)) + 4 and height > 12:
        fill = "#fff" if stay.ending == "completed" else svg.INK
        parts.append(
            svg.text(
                left + width / 2, y + height / 2 + 4, str(stay.trial), size=10, anchor="middle", fill=fill
            )
        )
    return parts


def _occupancy(study: StudySimulation, x: svg.Axis, top: float, unit: tuple[float, str]) -> list[str]:
    """Stacked areas: how many trials train on the way to each rung, with the highest rung at the bottom."""
    levels = sorted(_levels(study))
    counts = occupancy(study.record.segments, levels)
    moments = sorted({at for series in counts.values() for at, _ in series})
    most = max((sum(_at(series, moment) for series in counts.values()) for moment in moments), default=1)
    y = svg.Axis(low=0, high=max(1, most) * 1.05, start=top + OCCUPANCY, end=top)
    parts = svg.frame(x, y, x_title=unit[1], y_title="trials in training, by the rung they are on the way to")
    base = dict.fromkeys(moments, 0)
    for milestone in reversed(levels):
        series = counts.get(milestone, [])
        if not series:
            continue
        place = levels.index(milestone) / max(1, len(levels) - 1)
        outline: list[tuple[float, float]] = []
        lower: list[tuple[float, float]] = []
        previous: tuple[int, int] | None = None
        for moment in moments:
            low, high = base[moment], base[moment] + _at(series, moment)
            at = x(moment / unit[0])
            if previous is not None:
                outline.append((at, y(previous[1])))
                lower.append((at, y(previous[0])))
            outline.append((at, y(high)))
            lower.append((at, y(low)))
            previous = low, high
            base[moment] = high
        parts.append(svg.area(outline + lower[::-1], _shade(place), tip=f"on the way to step {milestone}"))
    return [*parts, *_scale(levels, top)]


def _scale(levels: list[int], top: float) -> list[str]:
    shown = levels if len(levels) <= 8 else [levels[place * (len(levels) - 1) // 7] for place in range(8)]
    at = LEFT + WIDTH - sum(30 + 7 * len(f"{level}") for level in shown)
    parts = [svg.text(at - 8, top - 10, "step", anchor="end", fill=svg.MUTED)]
    for level in shown:
        place = levels.index(level) / max(1, len(levels) - 1)
        parts += [svg.box(at, top - 20, 12, 12, _shade(place)), svg.text(at + 16, top - 10, str(level))]
        at += 30 + 7 * len(str(level))
    return parts


def _levels(study: StudySimulation) -> set[int]:
    policy = study.rows.fold.policy
    return {milestone for bracket in range(policy.brackets) for milestone in policy.ladder(bracket)}


def occupancy(segments: Sequence[Segment], levels: Sequence[int]) -> dict[int, list[tuple[float, int]]]:
    """For each rung level, how many trials train on the way to it: (moment, count) at every change."""
    changes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for segment in segments:
        level = next((level for level in levels if segment.to_step <= level), levels[-1])
        changes[level] += [(segment.start_s, 1), (segment.trained_s, -1)]
    found: dict[int, list[tuple[float, int]]] = {}
    for level, moves in changes.items():
        count = 0
        series: list[tuple[float, int]] = []
        for at, change in sorted(moves, key=lambda move: move[0]):
            count += change
            if series and series[-1][0] == at:
                series[-1] = at, count
            else:
                series.append((at, count))
        found[level] = series
    return found


def _at(series: list[tuple[float, int]], moment: float) -> int:
    low, high = 0, len(series)
    while low < high:
        middle = (low + high) // 2
        if series[middle][0] <= moment:
            low = middle + 1
        else:
            high = middle
    return series[low - 1][1] if low else 0


def _shade(place: float) -> str:
    """A colour between the two ends of `RUNGS`."""
    first, last = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in RUNGS)
    mixed = [round(a + (b - a) * place) for a, b in zip(first, last, strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
