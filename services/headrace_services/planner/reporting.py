"""What `headrace plan` prints and writes: tables for people, files for programs."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.output import Output
from headrace.errors import InvalidFieldError, Violation
from headrace_services.planner.bubbles import SHORTEST_S, StageWindows
from headrace_services.planner.explain import GIB, PARTS, Explanation, nothing_fits
from headrace_services.planner.modes import MODES
from headrace_services.planner.plan import Plan, spans
from headrace_services.planner.record import plan_record
from headrace_services.planner.search import Outcome, Progress, Search, Watch
from headrace_services.planner.shortlist import NEAR, within

if TYPE_CHECKING:
    from headrace_services.planner.validation import Accuracy

BAR = 40


@contextmanager
def progress(output: Output, text: str) -> Iterator[Watch]:
    """A line on a terminal that shows the progress of a search."""
    with output.status(text) as say:

        def watch(now: Progress) -> None:
            best = "" if now.best_s is None else f", best {now.best_s:.3g} s"
            say(f"{now.mode}, {now.solved} of {now.total} tuples solved{best}")

        yield watch


def show_plan(output: Output, plan: Plan) -> None:
    """A plan: its figures, where the time goes, and every stage."""
    request, d = plan.request, plan.degrees
    degrees = f"d={d.d} m={d.m} o={d.o} s={d.s} µ={d.mu}" + (f" e={d.e}" if request.model.experts else "")
    facts = [
        (
            "model",
            f"{request.model.name}, {request.model.parameters / 1e9:.4g}B parameters, "
            + ("as profiled" if request.model.profiled else f"S={request.model.sequence}"),
        ),
        (
            "cluster",
            f"{request.cluster.name}{'' if request.cluster.device.calibrated else ' (uncalibrated)'}",
        ),
        ("batch", f"{request.batch} sequences, micro-batches of {plan.micro_batch}"),
        ("plan", f"{degrees}, {request.schedule.value}, mode {plan.mode}"),
        (
            "iteration",
            f"{plan.simulated_s:.4g} s simulated ({plan.analytic_s:.4g} analytic, ≥ {plan.lower_bound_s:.4g})",
        ),
        ("", f"µ·max T_j, as the paper has it, would be {plan.paper_s:.4g} s"),
        ("MFU", _mfu(plan)),
        ("recomputed", f"{len(plan.recomputed)} of {len(request.model.layers)} layers"),
    ]
    facts += [("" if number else "notes", note) for number, note in enumerate(plan.notes)]
    for name, text in facts:
        output.line(f"{name:<11}{text}")
    output.line()
    total = plan.simulated_s
    rows = [
        (words, f"{getattr(plan.breakdown, name):.4g} s", _bar(getattr(plan.breakdown, name) / total))
        for name, words in PARTS.items()
    ]
    output.table(["time goes to", "seconds", ""], rows, right=["seconds"])
    output.line()
    stages = [
        (
            str(number),
            spans(stage.layers),
            str(len(stage.recomputed)),
            f"{stage.times.total_s * 1e3:.4g}",
            f"{stage.memory.static_bytes / GIB:.1f}",
            f"{(stage.memory.activation_bytes + stage.memory.rebuild_bytes) / GIB:.1f}",
            f"{stage.memory.total_bytes / request.capacity_bytes:.0%}",
        )
        for number, stage in enumerate(plan.stages)
    ]
    columns = ["stage", "layers", "recomputed", "ms", "static GiB", "activations GiB", "of memory"]
    output.table(columns, stages, right=set(columns) - {"layers"})


def show_windows(output: Output, windows: Sequence[StageWindows]) -> None:
    """The stages' idle windows."""
    output.line()
    rows = [
        (
            str(one.stage),
            f"{one.usable} of {one.windows}",
            f"{one.longest_s * 1e3:.1f}",
            f"{one.usable_s * 1e3:.1f}",
            f"{one.share:.1%}",
            f"{one.free_bytes / GIB:.1f}",
        )
        for one in windows
    ]
    columns = ["bubbles of stage", "windows", "longest ms", "usable ms", "of iteration", "free GiB"]
    output.table(columns, rows, right=columns[1:])
    output.note(
        f"A window is usable from {SHORTEST_S * 1e3:g} ms on; predictions on a real job cover a part of it."
    )


def show_shortlist(output: Output, plans: Sequence[Plan]) -> None:
    """The plans that are worth measuring."""
    if len(plans) < 2:
        return
    output.line()
    best = plans[0].simulated_s
    rows = [
        (
            _degrees(plan),
            f"{plan.simulated_s:.4g}",
            f"{plan.simulated_s / best - 1:+.1%}",
            str(len(plan.recomputed)),
            f"{plan.peak_bytes / GIB:.1f}",
        )
        for plan in plans
    ]
    columns = ["measure these", "seconds", "to best", "recomputed", "peak GiB"]
    output.table(columns, rows, right=columns[1:])
    output.note("Predictions are a few per cent off; a few iterations of each say which is fastest.")
    if not within(plans[-1].simulated_s, best):
        output.note(f"The last is further off than that ({NEAR:.0%}): no other split comes nearer.")


def show_front(output: Output, plans: Sequence[Plan]) -> None:
    """The cost of less memory, in time."""
    output.line()
    rows = [
        (
            f"{plan.peak_bytes / GIB:.1f}",
            f"{plan.peak_bytes / plan.request.cluster.device.memory_bytes:.0%}",
            f"{plan.simulated_s:.4g}",
            f"{plan.simulated_s / plans[0].simulated_s - 1:+.1%}",
            str(len(plan.recomputed)),
            _degrees(plan),
        )
        for plan in plans
    ]
    columns = ["peak GiB", "of device", "seconds", "slower", "recomputed", "plan"]
    output.table(columns, rows, right=columns[:-1])


def show_comparison(output: Output, search: Search, outcomes: Sequence[Outcome]) -> None:
    """All modes as a table with bars; those that find nothing say why."""
    slowest = max((outcome.plan.simulated_s for outcome in outcomes if outcome.plan), default=0.0)
    best = outcomes[0].plan.simulated_s if outcomes[0].plan else 0.0
    rows = []
    for outcome in outcomes:
        plan = outcome.plan
        if plan is None:
            rows.append((outcome.mode, "–", "–", "–", "–", str(outcome.tuples), "no plan"))
            continue
        ratio = f"{plan.simulated_s / best:.3f}"
        seconds = f"{plan.simulated_s:.4g}"
        bar = _bar(plan.simulated_s / slowest)
        rows.append(
            (outcome.mode, seconds, ratio, f"{plan.mfu:.1%}", _degrees(plan), str(outcome.tuples), bar)
        )
    columns = ["mode", "seconds", "ratio", "MFU", "plan", "tuples", ""]
    output.table(columns, rows, right=["seconds", "ratio", "MFU", "tuples"])
    for outcome in outcomes:
        if outcome.plan is None:
            (why,) = nothing_fits(search, MODES[outcome.mode]).violations
            output.note(f"{outcome.mode}: {why}")
    output.note(
        "Times are simulated, with one cost model for all modes; each mode searches its own axes only."
    )


def show_explanation(output: Output, answer: Explanation) -> None:
    """The plan, how the search ended, and the nearest losers."""
    show_plan(output, answer.plan)
    output.line()
    output.line(answer.summary)
    rows = [
        (
            f"d={one.degrees.d} m={one.degrees.m} o={one.degrees.o} s={one.degrees.s} µ={one.degrees.mu}",
            "–" if one.seconds is None else f"{one.seconds:.4g}",
            one.reason,
        )
        for one in answer.losers
    ]
    output.line()
    output.table(["nearest others", "seconds", "why not"], rows, right=["seconds"])
    output.line()
    changes = [
        (
            f"{one.degree}={one.value} for 1",
            f"{one.change.static_bytes / GIB:+.3g}",
            f"{one.change.activation_bytes / GIB:+.3g}",
            f"{one.change.communication_s:+.3g}",
            f"{one.change.compute_s:+.3g}",
        )
        for one in answer.deltas
    ]
    columns = ["each degree alone", "Δ static GiB", "Δ activations GiB", "Δ communication s", "Δ compute s"]
    output.table(columns, changes, right=columns[1:])


def show_calibration(
    output: Output, constants: Mapping[str, float], shapes: int, fitted: "Accuracy", validated: "Accuracy"
) -> None:
    """The constants, how many shapes have a separate factor, and how far predictions are off."""
    output.table(["constant", "value"], [(n, f"{v:.4g}") for n, v in constants.items()], right=["value"])
    output.line(f"and {shapes} shapes of blocks and heads that were measured")
    output.line()
    rows = [
        (name, str(one.rows), f"{one.median:.1%}", f"{one.mean:.1%}", f"{one.largest:.1%}")
        for name, one in (("fitted", fitted), ("cross-validated", validated))
    ]
    output.table(
        ["misses", "rows", "median", "mean", "largest"], rows, right=["rows", "median", "mean", "largest"]
    )


def write(plan: Plan, out: Path, target: str | None) -> list[Path]:
    """The plan as JSON, its timelines, and the files for a framework. Returns the files that were written."""
    from headrace_services.planner.drawing import timeline_svg
    from headrace_services.planner.emit import emit
    from headrace_services.planner.timeline import chrome_trace

    files = {
        "plan.json": json.dumps(plan_record(plan), indent=1) + "\n",
        "timeline.json": json.dumps(chrome_trace(plan)) + "\n",
        "timeline.svg": timeline_svg(plan),
    }
    if target is not None:
        files |= emit(plan, target)
    writable_folder(out)
    for name, text in files.items():
        write_text(out / name, text)
    return [out / name for name in files]


def writable_folder(out: Path, field: str = "out") -> None:
    """Makes a writable folder. Raises InvalidFieldError, before anything is computed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise _unwritable(out, error, field) from None


def write_text(path: Path, text: str, field: str = "out") -> None:
    """Writes a file. Raises InvalidFieldError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error, field) from None


def _unwritable(path: Path, error: OSError, field: str) -> InvalidFieldError:
    message = f"cannot be written: {error.strerror or error}"
    remedy = "Name a folder in which you may write."
    return InvalidFieldError([Violation(field=field, value=str(path), message=message, remedy=remedy)])


def _mfu(plan: Plan) -> str:
    if not plan.mfu:
        return "not known: no layer of the profile has forward_flops"
    counted = "as profiled" if plan.request.model.profiled else "attention counted full, not causal"
    return f"{plan.mfu:.1%} (HFU {plan.hfu:.1%}; {counted})"


def _degrees(plan: Plan) -> str:
    d = plan.degrees
    return f"d={d.d} m={d.m} o={d.o} s={d.s} µ={d.mu} e={d.e} b={plan.micro_batch}"


def _bar(share: float) -> str:
    return "█" * max(round(BAR * share), 1 if share > 0 else 0)
