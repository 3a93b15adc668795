"""The last seconds of a job as a trace for Perfetto, and as a picture: each stage's steps, its waits, and the
quanta of its trial inside them.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final
from xml.sax.saxutils import escape

from headrace.v1 import bubble_pb2 as pb

TRIAL: Final = (pb.BUBBLE_SPAN_KIND_QUANTA, pb.BUBBLE_SPAN_KIND_LATE)
WIDTH, LEFT, ROW, GAP, TOP = 1200, 90, 26, 12, 46
FILL: Final = {
    pb.BUBBLE_SPAN_KIND_STEP: "#4c6a92",
    pb.BUBBLE_SPAN_KIND_CONTROL_STEP: "#8fa3bf",
    pb.BUBBLE_SPAN_KIND_WINDOW: "#f2efe6",
    pb.BUBBLE_SPAN_KIND_QUANTA: "#d9822b",
    pb.BUBBLE_SPAN_KIND_LATE: "#f3d3b3",
}
LEGEND: Final = (
    (pb.BUBBLE_SPAN_KIND_STEP, "the stage computes"),
    (pb.BUBBLE_SPAN_KIND_CONTROL_STEP, "in a control step, without trials"),
    (pb.BUBBLE_SPAN_KIND_WINDOW, "it waits"),
    (pb.BUBBLE_SPAN_KIND_QUANTA, "the trial works"),
    (pb.BUBBLE_SPAN_KIND_LATE, "its last quantum is late"),
)


def chrome_trace(timeline: pb.GetBubbleTimelineResponse) -> dict[str, Any]:
    """The Chrome JSON format: a process for each stage, with the rank and its trial as threads.

    Times are whole microseconds, so that adjacent spans never overlap (see the planner's timelines).
    """
    events: list[dict[str, Any]] = []
    for track in timeline.tracks:
        process = 1 + track.stage + 1000 * track.replica
        events.append(_named("process_name", f"{timeline.job} stage {_place(track)}", process, 0))
        events += [
            _named("thread_name", name, process, thread) for thread, name in ((1, "rank"), (2, "trial"))
        ]
        for span in track.spans:
            thread = 2 if span.kind in TRIAL else 1
            began, ended = round(span.began * 1e6), round(span.ended * 1e6)
            events.append(
                {
                    "name": _name(span),
                    "ph": "X",
                    "pid": process,
                    "tid": thread,
                    "ts": began,
                    "dur": max(0, ended - began),
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def svg(timeline: pb.GetBubbleTimelineResponse) -> str:
    """A picture with two rows for each stage: the rank, and below it the trial."""
    height = TOP + len(timeline.tracks) * (2 * ROW + GAP) + 30
    scale = (WIDTH - LEFT - 20) / timeline.seconds if timeline.seconds else 0.0
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">'
        ),
        f"<title>{escape(timeline.job)}: the last {timeline.seconds:g} s</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        *_legend(),
    ]
    for number, track in enumerate(timeline.tracks):
        top = TOP + number * (2 * ROW + GAP)
        parts.append(f'<text x="8" y="{top + 17}">stage {_place(track)}</text>')
        parts.append(f'<text x="8" y="{top + ROW + 17}" fill="#555">trial</text>')
        ordered = sorted(track.spans, key=lambda span: span.kind)
        parts += list(_boxes(ordered, top, scale))
    foot = height - 10
    parts.append(f'<text x="{LEFT}" y="{foot}">0</text>')
    parts.append(f'<text x="{WIDTH - 20}" y="{foot}" text-anchor="end">{timeline.seconds * 1e3:g} ms</text>')
    return "\n".join([*parts, "</svg>", ""])


def _boxes(spans: Iterable[pb.BubbleSpan], top: int, scale: float) -> Iterator[str]:
    for span in spans:
        began, ended = max(0.0, span.began), max(0.0, span.ended)
        y = top + (ROW if span.kind in TRIAL else 0)
        yield (
            f'<rect x="{LEFT + began * scale:.2f}" y="{y}" width="{(ended - began) * scale:.2f}" '
            f'height="{ROW - 4}" fill="{FILL[span.kind]}"><title>{_name(span)}: '
            f"{(span.ended - span.began) * 1e3:.2f} ms</title></rect>"
        )


def _legend() -> Iterator[str]:
    for number, (kind, text) in enumerate(LEGEND):
        x = LEFT + number * 215
        yield f'<rect x="{x}" y="12" width="14" height="14" fill="{FILL[kind]}" stroke="#999"/>'
        yield f'<text x="{x + 20}" y="24">{text}</text>'


def _name(span: pb.BubbleSpan) -> str:
    match span.kind:
        case pb.BUBBLE_SPAN_KIND_STEP:
            return f"step {span.number}"
        case pb.BUBBLE_SPAN_KIND_CONTROL_STEP:
            return f"control step {span.number}"
        case pb.BUBBLE_SPAN_KIND_WINDOW:
            return f"waits (slot {span.number})"
        case pb.BUBBLE_SPAN_KIND_LATE:
            return "late"
        case _:
            return f"{span.number} quanta"


def _place(track: pb.BubbleTrack) -> str:
    return f"{track.stage}" if not track.replica else f"{track.stage}.{track.replica}"


def _named(kind: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
