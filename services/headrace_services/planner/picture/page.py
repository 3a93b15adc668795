"""A plan as one self-contained HTML page: its key figures in words, and the four figures of `figures`."""

from collections.abc import Iterator
from html import escape

from headrace.report import document
from headrace_services.planner.drawing import GIB, layers_of, title
from headrace_services.planner.explain import PARTS
from headrace_services.planner.picture import figures
from headrace_services.planner.plan import Plan


def page_html(plan: Plan) -> str:
    """The page."""
    sections = [
        document.section(
            "Stages",
            "One row per stage, one cell per layer. Hatched layers are recomputed in the backward pass.",
            document.figure(figures.stages(plan), "stages", zoom=False) + _table(plan),
        ),
        document.section(
            "Memory",
            "What a device of each stage holds at its peak.",
            document.figure(figures.memory(plan), "memory", zoom=False),
        ),
        document.section(
            "Schedule",
            "One bar per pass of a micro-batch. What it spends receiving, recomputing and in collectives is drawn "
            "along its lower edge. Of a long iteration this is the beginning and the end.",
            document.figure(figures.schedule(plan), "schedule"),
        ),
        document.section(
            "Memory over time",
            "One curve per stage, over the same stretches of time.",
            document.figure(figures.memory_timeline(plan), "memory-timeline"),
        ),
    ]
    return document.page(title(plan), _header(plan), sections)


def _header(plan: Plan) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in plan.notes)
    heading = f"{plan.request.model.name} on {plan.request.cluster.name}"
    return f'<h1>{escape(heading)}</h1>{notes}<div class="cards">{"".join(_cards(plan))}</div>'


def _cards(plan: Plan) -> Iterator[str]:
    d, request = plan.degrees, plan.request
    measured = "calibrated" if request.cluster.device.calibrated else "uncalibrated"
    more = f"of {request.batch} sequences, simulated, {measured}"
    yield document.card("iteration", f"{plan.simulated_s:.4g} s", more, "best")
    split = f"d={d.d} m={d.m} s={d.s}" + (f" e={d.e}" if request.model.experts else "")
    told = f"o={d.o}, µ={d.mu} micro-batches of {plan.micro_batch}, {request.schedule.value}"
    yield document.card("plan", split, told)
    if plan.mfu:
        yield document.card("MFU", f"{plan.mfu:.1%}", f"HFU {plan.hfu:.1%}")
    share = plan.peak_bytes / request.cluster.device.memory_bytes
    yield document.card("peak memory", f"{plan.peak_bytes / GIB:.1f} GiB", f"{share:.0%} of the device")
    again = len(plan.recomputed)
    yield document.card("recomputed", str(again), f"of {len(request.model.layers)} layers")
    seconds = [(words, getattr(plan.breakdown, name)) for name, words in PARTS.items()]
    rows = "".join(
        f"<div><dt>{escape(words)}</dt><dd>{spent:.4g} s</dd></div>" for words, spent in seconds if spent
    )
    yield f'<div class="card wide"><div class="label">time goes to</div><dl>{rows}</dl></div>'


def _table(plan: Plan) -> str:
    heads = ("stage", "layers", "recomputed", "ms a micro-batch", "in flight", "GiB")
    rows = "".join(
        f"<tr><td>{number}</td><td>{layers_of(stage)}</td><td>{len(stage.recomputed)}</td>"
        f"<td>{stage.times.total_s * 1e3:.4g}</td><td>{stage.in_flight}</td>"
        f"<td>{stage.memory.total_bytes / GIB:.1f}</td></tr>"
        for number, stage in enumerate(plan.stages)
    )
    columns = "".join(f"<th>{head}</th>" for head in heads)
    return f'<div class="scroll"><table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table></div>'
