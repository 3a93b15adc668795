"""A plan's iteration as a trace in the Chrome JSON format, which Perfetto (ui.perfetto.dev) opens.

One track per stage with every pass; inside a pass, what it spends receiving, recomputing and in collectives (drawn
together, though layers take turns); a counter of each stage's memory.

Times are whole microseconds. The format allows fractions, but Perfetto truncates start and length to nanoseconds
separately, and drops a slice that then overlaps the next one by a nanosecond. Rounded ends cannot cross, so passes
stay side by side and parts stay within their pass.
"""

from collections.abc import Iterator
from typing import Any, Final

from headrace_services.planner.plan import Plan, StagePlan
from headrace_services.planner.schedules import Pass
from headrace_services.planner.simulator import Event

NAMES: Final = {Pass.FORWARD: "forward", Pass.BACKWARD: "backward", Pass.WEIGHT: "weight gradients"}
PROCESS: Final = 1
FIRST_THREAD: Final = 1
"""The thread number of stage 0. Perfetto has no thread 0 in a process: it would put that stage on the main
thread's track."""


def chrome_trace(plan: Plan) -> dict[str, Any]:
    """The trace as a JSON object."""
    simulation = plan.run()
    events: list[dict[str, Any]] = [_named("process_name", f"{plan.request.model.name}", 0)]
    for number, stage in enumerate(plan.stages):
        events.append(_named("thread_name", f"stage {number}: layers {_span(stage)}", number))
        passes = simulation.events(number)
        for event in passes:
            events += _pass(event, number, stage)
        if stage.times.tail_s:
            events.append(
                _slice("gradients and optimizer", "tail", number, passes[-1].end_s, stage.times.tail_s)
            )
        for at_s, used in memory_over_time(stage, passes):
            counted = {"MiB": round(used / 2**20)}
            name = f"memory of stage {number}"
            events.append(
                {"name": name, "ph": "C", "ts": _microseconds(at_s), "pid": PROCESS, "args": counted}
            )
    other = {"iteration_s": plan.simulated_s, "schedule": plan.request.schedule.value}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def memory_over_time(stage: StagePlan, events: list[Event]) -> Iterator[tuple[float, int]]:
    """(seconds, bytes) whenever a stage's memory changes: a forward pass saves, the pass that frees it releases."""
    frees = Pass.WEIGHT if any(one.step.kind is Pass.WEIGHT for one in events) else Pass.BACKWARD
    alive = 0
    rebuild = stage.memory.rebuild_bytes
    yield 0.0, stage.memory.static_bytes
    for event in events:
        held = stage.memory.static_bytes + alive * stage.saved_bytes
        if event.step.kind is Pass.FORWARD:
            alive += 1
            yield event.start_s, held + stage.saved_bytes
            continue
        if event.step.kind is Pass.BACKWARD and rebuild:
            yield event.start_s, held + rebuild
        alive -= event.step.kind is frees
        yield event.end_s, stage.memory.static_bytes + alive * stage.saved_bytes


def parts(event: Event, stage: StagePlan) -> list[tuple[str, float, float]]:
    """The parts of a pass besides computing: (what, start, seconds), drawn one after another."""
    collectives = ("collectives", stage.communication_s / 2)
    match event.step.kind:
        case Pass.FORWARD:
            found = [("receive", stage.receive_forward_s), collectives]
        case Pass.BACKWARD:
            found = [("receive", stage.receive_backward_s), ("recompute", stage.recompute_s), collectives]
        case Pass.WEIGHT:
            found = []
    at, result = event.start_s, []
    for name, whole in found:
        seconds = whole / len(stage.chunks)
        if seconds > 0:
            result.append((name, at, seconds))
            at += seconds
    return result


def _pass(event: Event, number: int, stage: StagePlan) -> Iterator[dict[str, Any]]:
    step = event.step
    chunk = f" chunk {step.chunk}" if len(stage.chunks) > 1 else ""
    name = f"{step.kind.value}{step.micro_batch}{chunk}"
    yield _slice(name, NAMES[step.kind], number, event.start_s, event.end_s - event.start_s)
    for what, start, seconds in parts(event, stage):
        yield _slice(what, what, number, start, seconds)


def _slice(name: str, category: str, thread: int, start_s: float, seconds: float) -> dict[str, Any]:
    start = _microseconds(start_s)
    times = {"ts": start, "dur": _microseconds(start_s + seconds) - start}
    return {"name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": FIRST_THREAD + thread, **times}


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6)


def _named(kind: str, name: str, thread: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": PROCESS, "tid": FIRST_THREAD + thread, "args": {"name": name}}


def _span(stage: StagePlan) -> str:
    return f"{stage.layers[0]}–{stage.layers[-1]}"
