"""Which steps a trial may report.

A step is the unit of a study's budget, counted from 1. Rungs are the steps at which trials are compared. So a
trial reports at every rung that it reaches, and never past the full budget. Between two rungs it may report as
often as it likes. A report that breaks this rule would be compared with reports of less training, or would end
the trial far too early.

The rule is checked before anything is stored: in the trial's process, where the user sees it; in the worker, for
programs without this library; and in the scheduler, for ask/tell trials.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from headrace.metrics import plain_scalar

TOGETHER = "Report all metrics of a step together, in one t.report(...) a turn"
"""What to do instead of several reports of one step."""

_SHOWN = 8
_ETA = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a step cannot be reported, and what to do about it."""

    step: int
    message: str
    """What is wrong with the step."""
    remedy: str

    def __str__(self) -> str:
        return f"step {self.step} {self.message}. {self.remedy}"


def whole(step: object) -> int:
    """The step as a whole number; NumPy and torch numbers are accepted. Raises `TypeError` for anything else."""
    try:
        return _index(step)
    except TypeError:
        raise TypeError(
            f"step={step!r} is not a whole number; report the number of steps done so far"
        ) from None


def _index(value: object) -> int:
    """A whole number. Rejects bools, also those of torch, which `operator.index` would accept as 0 and 1. Raises
    `TypeError`.
    """
    if isinstance(plain_scalar(value), bool):
        raise TypeError(f"{value!r} is not a number")
    return index(value)  # type: ignore[arg-type]  # it says what it cannot take


def in_words(first: int, last: int) -> str:
    """`steps 1 to 3`, `step 4`."""
    return f"step {first}" if first == last else f"steps {first} to {last}"


def counted(name: str, value: object) -> int:
    """A number of steps, at least 1. Raises `TypeError` or `ValueError`, with the argument's name."""
    try:
        number = _index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} is not a whole number; give a number of steps") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
    return number


def refusal(
    step: int, *, since: int, rungs: Sequence[int], max_steps: int, turn: int | None = None
) -> Refusal | None:
    """Why `step` cannot be reported after the step `since`; None if it can.

    `rungs` are the trial's rungs, the last of which is `max_steps`; empty for a run by hand, which is not
    compared. `turn` is the turn of `t.steps()` in which the script gave the step itself, if it did.
    """
    crossed = [rung for rung in rungs if since < rung < step]
    if step < 1:
        remedy = "Count steps from 1: report the number of steps done so far."
        return Refusal(
            step=step, message="is negative" if step else "is before the first step", remedy=remedy
        )
    if step > max_steps:
        message = f"is past the full budget of {max_steps} {'step' if max_steps == 1 else 'steps'}"
    elif crossed:
        message = f"jumps over the rung{'s' * (len(crossed) > 1)} at {_listed(crossed)}"
    else:
        return None
    scale = step // turn if turn and turn < step and step % turn == 0 else None
    own = (
        f"A step is one turn of t.steps(), and this is turn {turn}: leave step= out to count turns"
        if scale
        else ""
    )
    told = (
        _past(step, since, rungs, max_steps, own, scale)
        if step > max_steps
        else _meeting(step, since, rungs, own)
    )
    return Refusal(step=step, message=message, remedy=told)


def counted_already(step: int, last: int) -> Refusal | None:
    """Why a client cannot report a step after the step `last` of the same attempt; None if it can. The value
    would be stored but never count, as a step counts only once.
    """
    if step > last:
        return None
    said = "was reported already" if step == last else f"lies before step {last}, which was reported already"
    return Refusal(
        step=step,
        message=said,
        remedy=f"A step counts once, with its first report: continue with step {last + 1}.",
    )


def begun_anew(step: int, restored: int) -> str:
    """Why the first report of a resumed trial cannot be for a step that it had already reported."""
    return (
        f"resumed after step {restored}, the script reports step {step} again: a loop or a count of its own starts "
        "over in each process. Loop over t.steps(), or begin after t.step, read before the loop; keep a count of your "
        "own in t.state"
    )


def counted_anew(step: int, last: int) -> str:
    """The warning for a trial that had reported up to a step, has no checkpoint, and reports an earlier step."""
    return (
        f"this process reports step {step}; an earlier one of the trial had come to step {last}. Nothing is tracked, "
        f"so steps are counted from 1 again, and up to step {last} they run again. Results at rungs where it was "
        "recorded stay. Where the script loads a checkpoint of its own, its weights are further than this count. Write "
        "t.track(model=..., optimizer=...) before the loop: it saves and restores them together with the count"
    )


def may_begin_anew(restored: int) -> str:
    """The warning for a resumed trial that does not give its steps: it is not known where its own loop starts."""
    return (
        f"resumed after step {restored}, and this report is outside t.steps(). A loop of your own, as over range(...), "
        "starts over in each process. Loop over t.steps(), or begin after t.step, read before the loop. Where your "
        "loop does so, say its steps, t.report(step=...): then they are checked"
    )


def draws_anew(restored: int) -> str:
    """The warning for a resumed trial whose own loop draws random numbers that were not restored."""
    return (
        f"resumed after step {restored}, and the random generators start over: a loop of your own does not restore "
        "them. Loop over t.steps(), or call t.track(...) before the loop, empty if there is nothing to track"
    )


def over(step: int, max_steps: int) -> str:
    """Why nothing can be reported after the loop of a trial that has used its full budget."""
    return (
        f"the trial is over, for it has reported step {step} of {max_steps}. "
        f"{TOGETHER}, as the last line in the loop"
    )


def returned_early(since: int, rungs: Sequence[int], max_steps: int) -> str | None:
    """Why a value that a function returned, without an earlier report, cannot be its result; None if it can."""
    crossed = [rung for rung in rungs if since < rung < max_steps]
    if not crossed:
        return None
    return (
        f"the function returned its result, which is one of the full budget, at step {max_steps}; this study compares "
        f"its trials at {_listed(crossed)} too. Call t.report(...) in each turn of `for step in t.steps():`, or create "
        "a study for a function that returns its result: with `steps: 1`, or with `policy: run_all`"
    )


def _past(step: int, since: int, rungs: Sequence[int], max_steps: int, own: str, scale: int | None) -> str:
    if scale:  # the script counts a smaller unit, a fixed number per turn
        budget = f"the study `steps: {scale * max_steps}`" if rungs else f"the run steps={scale * max_steps}"
        also = f" and {_written([scale * rung for rung in rungs])}" if len(rungs) > 1 else ""
        return f"{own}. To count {scale} steps a turn instead, give {budget}{also}."
    if rungs:
        return "Count in the unit of the study's `steps`, or give the study `steps` and rungs in your unit."
    such = "" if since else f", such as steps={step * max_steps} for {max_steps} reports {step} steps apart"
    return f"Give the run its budget in the unit that you report{such}."


def _meeting(step: int, since: int, rungs: Sequence[int], own: str) -> str:
    ladder = _reported_ladder(step - since, since, rungs)
    such = f", such as {_written(ladder)}" if ladder else ""
    return f"{own or 'Report at every rung'}, or give the study rungs at steps that you report{such}."


def _reported_ladder(gap: int, since: int, rungs: Sequence[int]) -> list[int]:
    """Rungs that the trial would all report: those up to `since`, then some of the steps `gap` apart, up to the
    budget. Empty if a trial that continues this way never reports the budget.
    """
    last = rungs[-1]
    if (last - since) % gap:
        return []
    if _even(rungs) and since in (0, gap):
        return list(range(gap, last + 1, gap))
    ladder = [rung for rung in rungs if rung <= since]
    while (level := max(1, since, _ETA * ladder[-1] if ladder else 0)) < last:
        turns = -((since - level) // gap)  # rounded up
        ladder.append(min(since + turns * gap, last))
    return ladder if ladder[-1] == last else [*ladder, last]


def _written(rungs: Sequence[int]) -> str:
    """Rungs as written in a study file."""
    if _even(rungs):
        return f"`interval: {rungs[0]}`"
    return f"`rungs: [{_listed(rungs)}]`"


def _even(rungs: Sequence[int]) -> bool:
    """Whether the rungs come from an interval. The last one is the full budget."""
    multiples = all(rung == rungs[0] * place for place, rung in enumerate(rungs[:-1], start=1))
    return len(rungs) > 3 and multiples and rungs[-1] <= rungs[0] * len(rungs)


def _listed(rungs: Sequence[int]) -> str:
    shown = [str(rung) for rung in rungs]
    if len(shown) > _SHOWN:
        shown[_SHOWN - 2 : -1] = ["…"]
    return ", ".join(shown)
