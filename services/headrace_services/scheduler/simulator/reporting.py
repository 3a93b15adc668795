"""The output of `headrace simulate`: one simulation with its rungs and lanes, or a table over seeds with
intervals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.text import Text

from headrace.cli import wording
from headrace.cli.output import Output
from headrace_services.scheduler.simulator.drawing.gantt import COLOURS
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.estimates import Row
from headrace_services.scheduler.simulator.stages import WITHOUT
from headrace_services.scheduler.simulator.statistics import Estimate
from headrace_services.scheduler.simulator.study import StudySimulation
from headrace_services.scheduler.simulator.summary import TOP, Summary

LANES, LANE_WIDTH, BAR = 16, 72, 40
SYMBOLS = {
    "completed": ("█", "blue"),
    "paused": ("▒", "cyan"),
    "stopped_early": ("░", "dim"),
    "interrupted": ("x", "yellow"),
    "failed": ("!", "magenta"),
    "cancelled": ("-", "dim"),
}
SAY_AFTER_S, SAY_EVERY_S = 1.0, 5.0


class Times:
    """How seconds of virtual time are shown: unchanged if a step is one second and nothing else is known."""

    def __init__(self, *, in_steps: bool) -> None:
        self.in_steps = in_steps

    def __call__(self, seconds: float | None) -> str:
        if seconds is None:
            return "-"
        return f"{round(seconds, 1):.6g}" if self.in_steps else wording.duration(seconds)

    def unit(self, longest_s: float) -> tuple[float, str]:
        """A unit for an axis: its length in seconds and its name."""
        if self.in_steps:
            return 1.0, "time in steps"
        for seconds, name, least in ((86400.0, "days", 3.0), (3600.0, "hours", 2.0), (60.0, "minutes", 3.0)):
            if longest_s >= least * seconds:
                return seconds, name
        return 1.0, "seconds"


@contextmanager
def progress(output: Output, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show the progress once a second has passed: a changing line on a terminal, a few plain lines elsewhere."""
    began = said = monotonic()
    status = output.errors.status(f"{what} …") if output.errors.is_terminal else None

    def say(done: int) -> None:
        nonlocal said
        now = monotonic()
        if now - began < SAY_AFTER_S:
            return
        left = (
            f", about {wording.duration((now - began) * (total - done) / done)} left"
            if 0 < done <= total
            else ""
        )
        line = f"{what}: {done} of {total}{left}" if total else f"{what}: {done} decisions"
        if status is not None:
            status.start()
            status.update(line)
        elif now - said >= SAY_EVERY_S:
            said = now
            output.note(line)

    try:
        yield say
    finally:
        if status is not None:
            status.stop()


def show_runs(output: Output, runs: Sequence[tuple[str, Summary]], times: Times) -> None:
    """Simulations side by side, and what the last one saved compared with the first, which is run-all."""
    bubbles = any(one.bubble_s for _, one in runs)
    columns = [
        "POLICY",
        "STEPS",
        "SLOT TIME",
        *(["IN BUBBLES"] if bubbles else []),
        "WALL",
        "COMPLETED",
        "STOPPED",
        "PAUSES",
        "IDLE",
        "WINNER",
        "VALUE",
        "REGRET",
    ]
    body = [
        [
            label,
            str(one.steps),
            times(one.slot_s),
            *([times(one.bubble_s)] if bubbles else []),
            times(one.wall_s),
            str(one.completed),
            str(one.stopped),
            str(one.pauses),
            f"{one.idle:.1%}",
            "-" if one.winner is None else str(one.winner),
            wording.number(one.winner_value),
            wording.number(one.regret),
        ]
        for label, one in runs
    ]
    output.table(columns, body, right=columns[1:])
    output.line()
    unit = " Times are in steps." if times.in_steps else ""
    output.line(
        "VALUE: the best that the winner reported at any step, noise included. REGRET: how far that value, without the "
        f"noise, falls short of the best that any trial has at the full budget.{unit}"
    )
    base = runs[0][1]
    for label, one in runs[1:] or runs:
        output.line(_told(label, base, one, times))
        if one.interruptions:
            lost = wording.plural(one.interruptions, "run")
            output.line(
                f"{label}: machines failed under {lost}; each trial resumed from its last checkpoint."
            )


def show_bubbles(output: Output, walls: Mapping[str, float | None], times: Times) -> None:
    """How much sooner a study ends with a large job's bubbles than without them, by the wall times of all labels."""
    for label, wall_s in walls.items():
        alone_s = walls.get(f"{label}{WITHOUT}")
        if alone_s and wall_s:
            output.line(
                f"{label}: {alone_s / wall_s:.1f} times as fast with bubbles, wall time {times(alone_s)} → "
                f"{times(wall_s)}."
            )


def _told(label: str, base: Summary, one: Summary, times: Times) -> str:
    saved = wording.percent(round(base.slot_s - one.slot_s), round(base.slot_s) or 1)
    faster = wording.percent(round(base.wall_s - one.wall_s), round(base.wall_s) or 1)
    if one.winner == base.winner:
        winner = f"the same winner, trial {one.winner}"
    else:
        winner = f"another winner, trial {one.winner} instead of {base.winner}"
    return (
        f"{label}: {base.steps - one.steps} of {base.steps} steps reclaimed ({saved} of the slot time), wall time "
        f"{times(base.wall_s)} → {times(one.wall_s)} ({faster} less), {winner}; idle while a trial waited: "
        f"{one.idle_pending:.1%}."
    )


def show_target(output: Output, runs: Sequence[tuple[str, Summary]], times: Times, within: float) -> None:
    """When each of them was within the target."""
    for label, one in runs:
        if one.best_value is None:
            continue
        best = f"{wording.number(one.best_value)}, trial {one.best}"
        goal = f"within {within:.3g} of the best value at the full budget ({best})"
        if one.to_target_s is None:
            output.line(f"{label}: never got {goal}.")
        else:
            output.line(
                f"{label}: {goal} after {times(one.to_target_s)}, {times(one.to_target_slot_s)} of slot time."
            )


def show_rungs(output: Output, study: StudySimulation) -> None:
    """How many trials reached each rung, and when the first and the last of them did."""
    policy = study.rows.fold.policy
    counts: dict[tuple[int, int], int] = {}
    for _, bracket, rung, _ in study.record.occupancy:
        counts[bracket, rung] = counts.get((bracket, rung), 0) + 1
    most = max(counts.values(), default=1)
    shown = [
        (bracket, rung) for bracket in range(policy.brackets) for rung in range(len(policy.ladder(bracket)))
    ]
    if len(shown) > 24:
        shown = [
            place
            for number, place in enumerate(shown)
            if number % (len(shown) // 12) == 0 or number == len(shown) - 1
        ]
    columns = (
        ["BRACKET", "RUNG AT STEP", "TRIALS", ""] if policy.brackets > 1 else ["RUNG AT STEP", "TRIALS", ""]
    )
    body = []
    for bracket, rung in shown:
        count = counts.get((bracket, rung), 0)
        cells = [
            str(policy.ladder(bracket)[rung]),
            str(count),
            "█" * max(count > 0, round(BAR * count / most)),
        ]
        body.append([str(bracket), *cells] if policy.brackets > 1 else cells)
    output.table(columns, body, right=columns[:-1])


def show_lanes(output: Output, simulation: Simulation, study: StudySimulation, times: Times) -> None:
    """The Gantt chart, with one character for each moment: how the attempt that the slot was busy with then ended."""
    end = study.record.end_s
    if not end:
        return
    lanes = [
        (machine.id, index, f"{machine.name}" + (f"/{index}" if machine.slots > 1 else ""))
        for machine in simulation.cluster.machines.values()
        for index in range(machine.slots)
    ]
    endings: dict[tuple[int, int], list[str]] = {
        (machine, index): [""] * LANE_WIDTH for machine, index, _ in lanes[:LANES]
    }
    for stay in study.record.stays:
        first = min(LANE_WIDTH - 1, int(LANE_WIDTH * stay.start_s / end + 0.5))
        last = min(LANE_WIDTH, max(first + 1, int(LANE_WIDTH * stay.end_s / end + 0.5)))
        for index in stay.slots:
            if (stay.worker, index) in endings:
                endings[stay.worker, index][first:last] = [stay.ending] * (last - first)
    width = max(len(name) for _, _, name in lanes[:LANES])
    for machine, index, name in lanes[:LANES]:
        line = Text(f"{name:<{width}}  ")
        for ending in endings[machine, index]:
            symbol, style = SYMBOLS.get(ending, (" ", ""))
            line.append(symbol, style)
        output.line(line)
    if len(lanes) > LANES:
        output.line(f"{'':<{width}}  … and {len(lanes) - LANES} more slots")
    output.line(f"{'':<{width}}  0{times(end):>{LANE_WIDTH - 1}}")
    present = {stay.ending for stay in study.record.stays}
    legend = "   ".join(f"{SYMBOLS[kind][0]} {kind.replace('_', ' ')}" for kind in COLOURS if kind in present)
    output.line(f"{'':<{width}}  {legend}")


def show_rows(output: Output, rows: Sequence[Row], times: Times, *, within: float) -> None:
    """A table over seeds: means with 95% intervals."""
    columns = [
        "POLICY",
        "SLOT TIME",
        "OF RUN-ALL",
        "WALL",
        "TO TARGET",
        "REACHED",
        "REGRET",
        "BEST FOUND",
        "BEST TRAINED",
        f"TOP {TOP}",
        "IDLE WAITING",
    ]
    body = [
        [
            row.label,
            _interval(row.slot_s, times),
            _interval(row.cost, _percent),
            _interval(row.wall_s, times),
            _interval(row.to_target_slot_s, times),
            _percent(row.reached.mean),
            _interval(row.regret, _short),
            _interval(row.found, _percent),
            _interval(row.survived, _percent),
            _percent(row.top.mean),
            _percent(row.idle_pending.mean),
        ]
        for row in rows
    ]
    output.table(columns, body, right=columns[1:])
    output.line()
    output.line(
        f"Means over {rows[0].slot_s.seeds} seeds with 95% intervals. TO TARGET: expected slot time until a report is "
        f"within {within:.3g} of the best value at the full budget, including what seeds that missed it spent. "
        f"BEST FOUND: the winner is the trial with that value; BEST TRAINED: it was trained to the end; TOP {TOP}: the "
        f"share of the {TOP} best trials that are among the study's own {TOP} best."
    )


def _interval(estimate: Estimate, tell: Callable[[float | None], str]) -> str:
    if estimate.mean is None:
        return "never"
    if estimate.low is None:
        return tell(estimate.mean)
    high = "∞" if estimate.high is None else tell(estimate.high)
    return f"{tell(estimate.mean)} ({tell(estimate.low)}–{high})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
