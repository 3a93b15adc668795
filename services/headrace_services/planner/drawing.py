"""A plan's iteration as an SVG: a lane per stage with its passes, and below it the stage's memory over time.

A long iteration is drawn as its beginning and its end, with a gap between: the passes in the gap repeat. The right
side shows what share of the whole iteration each stage spends on what, so that a narrow strip in the lanes can be
judged.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Final

from headrace_services.planner.plan import Plan, StagePlan
from headrace_services.planner.schedules import Pass
from headrace_services.planner.simulator import Event
from headrace_services.planner.timeline import memory_over_time, parts

COLOURS: Final = {
    "forward": "#4477aa",
    "backward": "#66ccee",
    "weight gradients": "#228833",
    "recompute": "#ee6677",
    "receive": "#ccbb44",
    "collectives": "#ee8866",
    "gradients and optimizer": "#aa3377",
    "bubble": "#e6e6e6",
}
"""Paul Tol's bright scheme, whose colours colour-blind readers can distinguish."""
GIB: Final = 2**30
PASSES: Final = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.WEIGHT: "weight gradients"}
LEFT, WIDTH, TOP, LANE, MEMORY, GAP = 196, 1130, 92, 36, 40, 14
INNER: Final = 15
"""Height of the activities of a pass besides computing, along its lower edge."""
SHARES, SHARES_WIDTH = LEFT + WIDTH + 40, 240
WHOLE: Final = SHARES + SHARES_WIDTH + 16
WINDOW_PASSES: Final = 30
"""How many passes of a stage one picture shows legibly; more with many stages."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time and its place in the picture."""

    start_s: float
    end_s: float
    left: float
    width: float

    def x(self, at_s: float) -> float:
        """The place of a moment, cut to the window."""
        inside = min(max(at_s, self.start_s), self.end_s)
        return self.left + (inside - self.start_s) / (self.end_s - self.start_s) * self.width


def timeline_svg(plan: Plan) -> str:
    """The picture."""
    return page(plan, *timeline(plan))


def page(plan: Plan, height: int, parts: Iterable[str]) -> str:
    """Parts below the plan's title, as a file."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WHOLE} {height}" '
        f'font-family="sans-serif" font-size="12">'
    )
    back = f'<rect width="{WHOLE}" height="{height}" fill="white"/>'
    said = f'<text x="16" y="26" font-size="16">{escape(title(plan))}</text>'
    return "\n".join([head, back, said, *parts, "</svg>\n"])


def timeline(plan: Plan) -> tuple[int, list[str]]:
    """The timeline's height, and its parts below a title."""
    simulation = plan.run()
    rows = [simulation.events(number) for number in range(len(plan.stages))]
    windows = _windows(spans(rows, simulation.total_s, len(plan.stages[0].chunks)))
    height = TOP + len(rows) * (LANE + MEMORY + GAP) + 40
    out = [
        *_legend(rows, plan),
        f'<text x="{SHARES}" y="{TOP - 8}" fill="#444">shares of the iteration</text>',
    ]
    floor = int(0.9 * min(stage.memory.static_bytes for stage in plan.stages))
    for number, (stage, events) in enumerate(zip(plan.stages, rows, strict=True)):
        top = TOP + number * (LANE + MEMORY + GAP)
        name = f"stage {number} · layers {layers_of(stage)}"
        out.append(f'<text x="16" y="{top + 17}">{name}</text>')
        share = stage.memory.total_bytes / plan.request.capacity_bytes
        below = top + LANE
        out.append(f'<text x="16" y="{below + 16}" fill="#666">memory, peak {share:.0%}</text>')
        out.append(
            f'<text x="16" y="{below + 32}" fill="#666" font-size="10">drawn from {floor / GIB:.0f} GiB</text>'
        )
        for window in windows:
            out += _lane(window, top, stage, events)
            out += _memory(window, top + LANE + 4, stage, events, floor, plan.request.capacity_bytes)
        out += _shares(top, stage, events, simulation.total_s)
    out += _axis(windows, height - 26)
    return height, out


def spans(rows: list[list[Event]], total_s: float, chunks: int) -> list[tuple[float, float]]:
    """The stretches of time to draw: all of a short iteration, or the beginning and the end of a long one.

    They are long enough that the pipeline has filled before the gap, and little remains to drain after it.
    """
    passes = max(WINDOW_PASSES, 3 * len(rows)) * min(chunks, 2)
    if max(len(row) for row in rows) <= passes * 1.5:
        return [(0.0, total_s)]
    span = min(row[passes // 2].end_s for row in rows)
    return [(0.0, span), (total_s - span, total_s)]


def layers_of(stage: StagePlan) -> str:
    """Its layers in a few words, chunk by chunk."""
    runs = [f"{chunk[0]}–{chunk[-1]}" if len(chunk) > 1 else f"{chunk[0]}" for chunk in stage.chunks if chunk]
    return ", ".join(runs[:2]) + (", …" if len(runs) > 2 else "")


def _windows(drawn: list[tuple[float, float]]) -> list[Window]:
    width = (WIDTH - 40 * (len(drawn) - 1)) / len(drawn)
    return [
        Window(start_s, end_s, LEFT + number * (width + 40), width)
        for number, (start_s, end_s) in enumerate(drawn)
    ]


def _lane(window: Window, top: int, stage: StagePlan, events: list[Event]) -> Iterator[str]:
    yield _box(window, top, LANE, window.start_s, window.end_s, "bubble")
    for event in events:
        if event.end_s <= window.start_s or event.start_s >= window.end_s:
            continue
        yield _box(window, top, LANE, event.start_s, event.end_s, PASSES[event.step.kind], _told(event))
        for what, start, seconds in parts(event, stage):
            yield _box(window, top + LANE - INNER, INNER, start, start + seconds, what)
        width = window.x(event.end_s) - window.x(event.start_s)
        if width > 13:
            middle = (window.x(event.end_s) + window.x(event.start_s)) / 2
            label = f'x="{middle:.1f}" y="{top + 14}" text-anchor="middle" font-size="10"'
            colour = "#000" if event.step.kind is Pass.BACKWARD else "#fff"
            yield f'<text {label} fill="{colour}">{event.step.micro_batch}</text>'
    end = events[-1].end_s
    if stage.times.tail_s and end + stage.times.tail_s > window.start_s:
        yield _box(window, top, LANE, end, end + stage.times.tail_s, "gradients and optimizer")


def _shares(top: int, stage: StagePlan, events: list[Event], total_s: float) -> Iterator[str]:
    """One bar: what the stage does from the first pass of the iteration to its end."""
    seconds = dict.fromkeys(COLOURS, 0.0)
    for event in events:
        inner = parts(event, stage)
        for what, _, spent in inner:
            seconds[what] += spent
        seconds[PASSES[event.step.kind]] += event.end_s - event.start_s - sum(spent for *_, spent in inner)
    seconds["gradients and optimizer"] = stage.times.tail_s
    seconds["bubble"] = max(total_s - sum(seconds.values()), 0.0)
    at = float(SHARES)
    for what, spent in seconds.items():
        width = spent / total_s * SHARES_WIDTH
        if width > 0:
            tip = f"<title>{what}: {spent:.4g} s</title>"
            shape = f'x="{at:.1f}" y="{top}" width="{width:.1f}" height="{LANE}"'
            yield f'<rect {shape} fill="{COLOURS[what]}">{tip}</rect>'
        at += width
    told = [f"{what} {seconds[what] / total_s:.1%}" for what in ("bubble", "recompute") if seconds[what]]
    talks = seconds["receive"] + seconds["collectives"]
    told += [f"communication {talks / total_s:.1%}"] if talks else []
    for line, text in enumerate((" · ".join(told[:2]), " · ".join(told[2:]))):
        yield f'<text x="{SHARES}" y="{top + LANE + 16 + 15 * line}" fill="#444" font-size="11">{text}</text>'


def _memory(
    window: Window, top: int, stage: StagePlan, events: list[Event], lowest: int, capacity: int
) -> Iterator[str]:
    """A step curve, the constant part at its base, and the line of the available memory."""
    points: list[str] = []
    height = MEMORY - 4.0

    def y(used: int) -> float:
        return top + height * (1 - min((used - lowest) / (capacity - lowest), 1.0))

    last = y(stage.memory.static_bytes)
    points.append(f"{window.x(window.start_s):.1f},{last:.1f}")
    for at_s, used in memory_over_time(stage, events):
        if at_s > window.end_s:
            break
        points += [f"{window.x(at_s):.1f},{last:.1f}", f"{window.x(at_s):.1f},{y(used):.1f}"]
        last = y(used)
    points.append(f"{window.left + window.width:.1f},{last:.1f}")
    floor, left, right = y(stage.memory.static_bytes), window.left, window.left + window.width
    bottom = top + height
    area = f"{' '.join(points)} {right:.1f},{bottom:.1f} {left:.1f},{bottom:.1f}"
    yield f'<polygon points="{area}" fill="#bbbbbb"/>'
    yield f'<rect x="{left:.1f}" y="{floor:.1f}" width="{right - left:.1f}" height="{bottom - floor:.1f}" fill="#888"/>'
    yield f'<line x1="{left:.1f}" x2="{right:.1f}" y1="{top}" y2="{top}" stroke="#cc3311" stroke-dasharray="3 3"/>'


def _legend(rows: list[list[Event]], plan: Plan) -> Iterator[str]:
    used = {PASSES[event.step.kind] for row in rows for event in row[:200]} | {
        "gradients and optimizer",
        "bubble",
    }
    if plan.recomputed:
        used.add("recompute")
    if any(stage.communication_s for stage in plan.stages):
        used.add("collectives")
    if len(rows) > 1:
        used.add("receive")
    x = 16
    for name, colour in COLOURS.items():
        if name in used:
            yield _key(x, colour, name)
            x += 40 + int(6.6 * len(name))
    yield _key(x, "#888", "parameters and optimizer")
    x += 214
    yield _key(x, "#bbbbbb", "activations")
    x += 124
    yield f'<line x1="{x}" x2="{x + 14}" y1="49" y2="49" stroke="#cc3311" stroke-dasharray="3 3"/>'
    yield f'<text x="{x + 20}" y="54">capacity</text>'


def _key(x: int, colour: str, name: str) -> str:
    square = f'<rect x="{x}" y="42" width="14" height="14" fill="{colour}"/>'
    return f'{square}<text x="{x + 20}" y="54">{name}</text>'


def _axis(windows: list[Window], top: int) -> Iterator[str]:
    for window in windows:
        for part in range(5):
            at_s = window.start_s + (window.end_s - window.start_s) * part / 4
            anchor = "start" if part == 0 else "end" if part == 4 else "middle"
            yield f'<text x="{window.x(at_s):.1f}" y="{top}" text-anchor="{anchor}" fill="#444">{at_s:.4g} s</text>'
    if len(windows) > 1:
        yield f'<text x="{LEFT + WIDTH / 2}" y="{TOP - 8}" text-anchor="middle" fill="#444">… repeats …</text>'


def _box(
    window: Window, top: float, height: float, start_s: float, end_s: float, what: str, told: str = ""
) -> str:
    x, width = window.x(start_s), window.x(end_s) - window.x(start_s)
    tip = f"<title>{escape(told)}</title>" if told else ""
    edge = ' stroke="white" stroke-width="0.5"' if told else ""
    shape = f'x="{x:.1f}" y="{top}" width="{max(width, 0.0):.1f}" height="{height}"'
    return f'<rect {shape} fill="{COLOURS[what]}"{edge}>{tip}</rect>'


def _told(event: Event) -> str:
    kind = PASSES[event.step.kind]
    return f"{kind} of micro-batch {event.step.micro_batch}: {event.start_s:.4g} to {event.end_s:.4g} s"


def title(plan: Plan) -> str:
    """What is planned, and how."""
    d = plan.degrees
    mfu = f", MFU {plan.mfu:.1%}" if plan.mfu else ""
    return (
        f"{plan.request.model.name} on {plan.request.cluster.name}: {plan.request.schedule.value}, "
        f"d={d.d} m={d.m} o={d.o} s={d.s} µ={d.mu}, {plan.simulated_s:.4g} s{mfu} (simulated)"
    )
