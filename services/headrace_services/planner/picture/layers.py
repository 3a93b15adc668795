"""The picture: which layers are where and which are recomputed, memory by component, and the timeline below."""

from collections.abc import Iterator

from headrace_services.planner.drawing import (
    COLOURS,
    GIB,
    LEFT,
    SHARES,
    SHARES_WIDTH,
    WIDTH,
    layers_of,
    page,
    timeline,
)
from headrace_services.planner.model import Layer, LayerKind
from headrace_services.planner.plan import Plan, StagePlan

TOP, ROW, CELL = 66, 30, 22
WIDEST = 40
"""The width of a layer's cell."""
NOTE = 100
"""The space behind a row for the number of recomputed layers."""
KINDS = {
    "embedding": "#44546a",
    "block": "#b8c4d0",
    "mixture": "#8195ab",
    "measured": "#b8c4d0",
    "head": "#7a5195",
}
MEMORY = {
    "parameters and optimizer": "#888888",
    "activations": "#bbbbbb",
    "room to recompute": COLOURS["recompute"],
}


def kind_of(layer: Layer) -> str:
    """The kind of `KINDS` as which a layer is drawn."""
    if layer.profile is not None:
        return "measured"
    if layer.kind is not LayerKind.BLOCK:
        return layer.kind.value
    return "mixture" if layer.experts else "block"


def memory_of(stage: StagePlan) -> dict[str, int]:
    """Bytes of a stage by the words of `MEMORY`."""
    used = stage.memory
    return dict(zip(MEMORY, (used.static_bytes, used.activation_bytes, used.rebuild_bytes), strict=True))


def picture_svg(plan: Plan) -> str:
    """The whole picture as SVG."""
    above = TOP + ROW * len(plan.stages) + 6
    height, parts = timeline(plan)
    # The timeline leaves space for a title, which is above the stages here.
    moved = [f'<g transform="translate(0 {above - 20})">', *parts, "</g>"]
    return page(plan, above - 20 + height, [*_stages(plan), *moved])


def _stages(plan: Plan) -> Iterator[str]:
    layers = plan.request.model.layers
    most = max(len(stage.layers) + len(stage.chunks) - 1 for stage in plan.stages)
    width = min(WIDEST, (WIDTH - NOTE) / most)
    yield from _legend({kind_of(layer) for layer in layers}, recomputed=bool(plan.recomputed))
    card = plan.request.cluster.device.memory_bytes
    for number, stage in enumerate(plan.stages):
        top = TOP + ROW * number
        again = set(stage.recomputed)
        yield f'<text x="16" y="{top + 15}">stage {number} · layers {layers_of(stage)}</text>'
        x = float(LEFT)
        for chunk in stage.chunks:
            for index in chunk:
                yield from _cell(x, top, width, index, layers[index], index in again)
                x += width
            x += width
        if again:
            yield f'<text x="{x - width + 10:.1f}" y="{top + 15}" fill="#444">{len(again)} recomputed</text>'
        yield from _memory(top, stage, card, plan.request.capacity_bytes)


def _cell(x: float, top: int, width: float, index: int, layer: Layer, again: bool) -> Iterator[str]:
    kind = kind_of(layer)
    tip = f"<title>layer {index}: {kind}{', recomputed' if again else ''}</title>"
    shape = f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{CELL}" stroke="white" stroke-width="0.5"'
    yield f'<rect {shape} fill="{KINDS[kind]}">{tip}</rect>'
    if again:
        mark = f'x="{x + 0.5:.1f}" y="{top + CELL - 8}" width="{max(width - 1, 0.5):.1f}" height="8"'
        yield f'<rect {mark} fill="{COLOURS["recompute"]}"/>'
    letter = {"embedding": "E", "head": "H"}.get(kind)
    if letter and width >= 9:
        at = f'x="{x + width / 2:.1f}" y="{top + 15}" text-anchor="middle"'
        yield f'<text {at} font-size="11" fill="white">{letter}</text>'


def _memory(top: int, stage: StagePlan, card: float, capacity: int) -> Iterator[str]:
    """One bar as wide as the device's memory, with a line at the part that a plan may use."""
    scale = SHARES_WIDTH / card
    yield f'<rect x="{SHARES}" y="{top}" width="{SHARES_WIDTH}" height="{CELL}" fill="#f0f0f0"/>'
    x = float(SHARES)
    for what, used in memory_of(stage).items():
        width = used * scale
        tip = f"<title>{what}: {used / GIB:.1f} GiB</title>"
        shape = f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{CELL}"'
        yield f'<rect {shape} fill="{MEMORY[what]}">{tip}</rect>'
        x += width
    at = SHARES + capacity * scale
    edge = 'stroke="#cc3311" stroke-dasharray="3 3"'
    yield f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top - 2}" y2="{top + CELL + 2}" {edge}/>'
    told = f"{stage.memory.total_bytes / GIB:.1f} GiB"
    yield f'<text x="{SHARES + 6}" y="{top + 15}" font-size="11" fill="white">{told}</text>'


def _legend(kinds: set[str], *, recomputed: bool) -> Iterator[str]:
    x = LEFT
    names = [(KINDS[kind], kind) for kind in KINDS if kind in kinds]
    names += [(COLOURS["recompute"], "recomputed")] if recomputed else []
    for colour, name in names:
        yield f'<rect x="{x}" y="42" width="14" height="14" fill="{colour}"/><text x="{x + 20}" y="54">{name}</text>'
        x += 40 + int(6.6 * len(name))
    yield f'<text x="{SHARES}" y="54" fill="#444">memory of a device at its peak</text>'
