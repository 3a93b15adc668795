"""How values are shown to people: numbers, parameters, durations, sizes. Pure; shared by the CLI and reports."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, assert_never

from headrace import not_known
from headrace.bounds.numbers import SEATS
from headrace.client.machines import Holder
from headrace.client.model import (
    BundleSize,
    EarlierEnd,
    Listing,
    OtherCode,
    StudyInfo,
    TrialFailure,
    TrialInfo,
    TrialState,
)
from headrace.first_few import first_few
from headrace.last_words import cause, likeness
from headrace.spec import Objective, Scope, StartsWithDraws, StudySpec, Value
from headrace.steps import in_words

T = TypeVar("T")
ROWS = 24
"""The most rungs that are shown individually."""
CAUSES = 3
"""The most causes of failures that are shown individually."""


def number(value: float | None, digits: int = 5) -> str:
    """A number with five significant digits; `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}"


def scalar(value: Value | None) -> str:
    """A parameter's value: short, and a string without quotes."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case float():
            return number(value)
        case _:
            return str(value)


def thinned(items: Sequence[T], most: int = ROWS) -> list[T]:
    """At most this many of the items, evenly spread, including the first and the last one."""
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    return [items[round(place * last / (most - 1))] for place in range(most)]


def rungs_listed(rungs: Sequence[int]) -> str:
    """`1, 3, 9, 27`, or for very many `1, 2, 3, …, 256 (256 in all)`."""
    if len(rungs) <= ROWS:
        return ", ".join(map(str, rungs))
    first = ", ".join(map(str, rungs[:3]))
    return f"{first}, …, {rungs[-1]} ({len(rungs)} in all)"


def members(held: Sequence[Holder]) -> str:
    """The trials of one process: `digits/3`, or for a bundle `digits/3 5 8 (3 of 32 seats)`. Under `fuse: auto`
    the seats are not shown: a bundle then has as many as it may ever have.
    """
    first, *others = (holder.trial for holder in held)
    if not held[0].bundle:
        return str(first)
    numbers = " ".join([str(first), *(str(trial.number) for trial in others)])
    seats = held[0].bundle_seats
    return (
        f"{numbers} ({len(held)} of {seats} seats)"
        if seats < SEATS
        else f"{numbers} ({plural(len(held), 'trial')})"
    )


def first_step(size: BundleSize) -> str:
    """What the first step of a process takes: `the first step of 8 trials takes 1.2 s, as long as 38 later ones`."""
    of = plural(size.first_step_trials, "trial")
    as_long = (
        f", as long as {size.first_step_s / size.later_step_s:.0f} later ones" if size.later_step_s else ""
    )
    return f"the first step of {of} takes {number(size.first_step_s, 3)} s{as_long}"


def misses(trial: TrialInfo, spec: StudySpec) -> str:
    """Which constraints a trial misses: `misses mem ≤ 5 with 7.2`, or that it did not report the metric."""
    found = []
    for constraint in spec.constraints:
        value = trial.counted_metrics.get(constraint.metric)
        if value is None:
            found.append(f"did not report {constraint.metric}")
        elif constraint.excess(value) > 0:
            found.append(f"misses {constraint} with {number(value)}")
    return ", ".join(found) or "misses a constraint"


def unreported(trial: TrialInfo, spec: StudySpec) -> str:
    """`never reported loss`: the objective that a trial never reported, although it reported others."""
    if trial.state is not TrialState.TERMINATED or not trial.metrics:
        return ""
    missing = [one.metric for one in spec.objectives if one.metric not in trial.metrics]
    return f"did not report {' and '.join(missing)} at its end" if missing else ""


def params(values: Mapping[str, Value]) -> str:
    """`lr=0.001 width=64`."""
    return " ".join(f"{name}={scalar(value)}" for name, value in values.items())


def objectives(trial: TrialInfo, wanted: Sequence[Objective]) -> str:
    """`accuracy 0.97, latency_ms 3.2`: the trial's objectives in the report that counts."""
    return ", ".join(f"{one.metric} {number(trial.objective_values.get(one.metric))}" for one in wanted)


def scored(trial: TrialInfo, objective: Objective) -> str:
    """`0.31 at step 27`: the value that counts, and the step of its report."""
    mean = f", the mean of its last {plural(objective.k, 'report')}," if objective.k else ""
    return f"{number(trial.score)}{mean} at step {scalar(trial.score_step)}"


def counted(trial: TrialInfo, spec: StudySpec) -> str:
    """`0.31 at step 27`, or for several objectives `accuracy 0.97, latency_ms 3.2 at step 27`: the values that
    count.
    """
    if not spec.further_objectives:
        return scored(trial, spec.objective)
    at = "" if trial.score_step is None else f" at step {trial.score_step}"
    return f"{objectives(trial, spec.objectives)}{at}"


def shown_values(trial: TrialInfo, spec: StudySpec) -> str:
    """`0.31`, or for several objectives `accuracy 0.97, latency_ms 3.2`: the values that count. If none does
    because the trial misses a constraint, those that it last reported.
    """
    if spec.further_objectives:
        return objectives(trial, spec.objectives)
    return number(trial.value if trial.score is None else trial.score)


def goals(spec: StudySpec) -> str:
    """`maximize accuracy, minimize latency_ms`."""
    return ", ".join(f"{one.goal} {one.metric}" for one in spec.objectives)


def earlier_end(end: EarlierEnd) -> str:
    """`completed the full budget of 27 steps`, or `was stopped early at step 9`."""
    if end.budget is not None:
        return f"completed the full budget of {plural(end.budget, 'step')}"
    how = f"was {end.reason.value.replace('_', ' ')}" if end.reason is not None else "ended"
    return f"{how} at step {end.step}"


def kept_result(trial: TrialInfo) -> str:
    """`keeps its result of step 27, from before it continued: it completed …`: which earlier end of a trial
    counts, and which better value does not; empty if none does, or if the trial has not continued yet.
    """
    end = trial.counted_end
    if end is None or (trial.step == end.step and not trial.failed):
        return ""  # it has not trained further
    said = f"keeps its result of step {end.score_step}, from before it continued: it {earlier_end(end)}"
    if trial.failed and trial.best_value is not None and (trial.best_step or 0) > end.step:
        better = f"{number(trial.best_value)} at step {trial.best_step}"
        said += f"; its better value, {better}, does not count because it failed after that"
    return said


def what_counts(objective: Objective) -> str:
    """Which value of a trial counts, for a sentence that starts with its metric."""
    match objective.scope:
        case Scope.BEST:
            return "its best value at any step"
        case Scope.LAST:
            return "its last value"
        case Scope.FULL_BUDGET:
            return "its last value, of trials that completed before others"
        case Scope.MEAN_LAST_K:
            return f"the mean of its last {plural(objective.k or 1, 'value')}"
        case never:
            assert_never(never)


def warm_start(study: StudyInfo, results: int) -> str:
    """`1 result of study digits-may, fewer than the 10 that tpe starts with: …`: the results of a warm start."""
    if study.spec.warm_start is None:
        return ""
    sampler = study.spec.sampler
    startup = sampler.startup_trials if isinstance(sampler, StartsWithDraws) else 0
    text = f"{plural(results, 'result')} of study {study.spec.warm_start.study}"
    if results >= startup:
        return text
    return f"{text}, fewer than the {startup} that {sampler.kind} starts with (startup_trials), so it draws first"


def failures(study: StudyInfo) -> str | None:
    """`3 of 9 trials failed: 2 × ValueError: no data (trials 0, 1 on worker 'node-1'), 1 × exit status 1 (trial
    4)`, the most common cause first; None if none failed."""
    if not study.failures:
        return None
    alike: dict[str, list[TrialFailure]] = {}
    for failure in study.failures:
        alike.setdefault(likeness(cause(failure.detail)), []).append(failure)
    groups = sorted(alike.values(), key=len, reverse=True)  # of equally common causes, the first one first
    shown = [_group(found) for found in groups[:CAUSES]]
    if len(groups) > CAUSES:
        shown.append(plural(len(groups) - CAUSES, "other cause"))
    count, known = study.counts.failed, len(study.failures)
    of_them = f" (the first {known})" if count > known else ""
    return f"{count} of {plural(study.counts.total, 'trial')} failed{of_them}: {', '.join(shown)}"


def _group(found: Sequence[TrialFailure]) -> str:
    """The error, the trials that failed because of it, and the worker if all of them were on the same one."""
    errors = [cause(failure.detail) for failure in found]
    like = "" if len(set(errors)) == 1 else " and the like"
    numbers = ", ".join(str(failure.trial) for failure in found)
    workers = {failure.worker for failure in found}
    worker = next(iter(workers))
    where = f" on worker '{worker}'" if worker and len(workers) == 1 else ""
    return f"{len(found)} × {errors[0]}{like} (trial{'s' * (len(found) > 1)} {numbers}{where})"


def other_code(trial: TrialInfo) -> str:
    """That a trial ran different code than its study started with, or copied the state of such a trial, and
    which files differ; empty for any other trial.
    """
    if not trial.code_changed:
        return ""
    copied = [one for one in trial.other_code if one.trial != trial.number]
    shown = steps_of_other_code(copied)
    perhaps = all(map(not_known.is_marked, trial.code_changed))
    ran, was = ("may have run", "may have been") if perhaps else ("ran", "was")
    if not copied:
        what = f"{ran} other code than the study started with"
    elif len(copied) == len(trial.other_code):
        what = f"{was} trained in part by other code than the study started with, {shown}"
    else:
        what = f"{ran} other code than the study started with, and took over {shown}"
    after = "" if trial.result_of_other_code else ", after the result that counts"
    return f"{what}{after}: {not_known.listing(trial.code_changed)}"


def steps_of_other_code(stretches: Sequence[OtherCode]) -> str:
    """`steps 1 to 3 of trial 3, step 4 of trial 0`."""
    return first_few([f"{in_words(one.first_step, one.last_step)} of trial {one.trial}" for one in stretches])


def best_of_other_code(study: StudyInfo) -> str:
    """`the best trial, 2, is of other code than the first`: how an edit affects the best result, or those on the
    front; empty if it does not.
    """
    several = bool(study.spec.further_objectives)
    best = study.front if several else (study.leader,)
    marked = [trial for trial in best if trial is not None and trial.code_changed]
    doubted = [trial for trial in marked if trial.result_of_other_code]
    shown = doubted or marked
    if not shown:
        return ""
    numbers = first_few([str(trial.number) for trial in shown], ROWS)
    who = (
        f"on the front, trial{'s' * (len(shown) > 1)} {numbers}" if several else f"the best trial, {numbers},"
    )
    if not doubted:
        return f"{who} ran other code than the first, after the result that counts"
    ran = any(one.trial == trial.number for trial in doubted for one in trial.other_code)
    ran = ran or not all(trial.other_code for trial in doubted)
    return f"{who} {'ran' if ran else 'was trained in part by'} other code than the first"


def left_out(found: Listing[Any] | StudyInfo | TrialInfo, most: int = 20) -> list[str]:
    """What an answer leaves out, and why: one line each, at most `most`."""
    match found:
        case StudyInfo():
            return [f"study {found.name}: {found.unshown}"] if found.unshown else []
        case TrialInfo():
            return [f"trial {found.study}/{found.number}: {found.unshown}"] if found.unshown else []
    lines = [*map(str, found.unshown)]
    lines += [line for one in found if isinstance(one, StudyInfo | TrialInfo) for line in left_out(one)]
    return lines if len(lines) <= most else [*lines[:most], f"and {len(lines) - most} more like these"]


def duration(seconds: float | None) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`, `3 d 04 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def ago(time: datetime | None, now: datetime | None = None) -> str:
    """`12 s ago`."""
    if time is None:
        return "-"
    return f"{duration(max(0.0, ((now or datetime.now(UTC)) - time).total_seconds()))} ago"


def silence(trial: TrialInfo, spec: StudySpec, heard: datetime | None, now: datetime | None = None) -> str:
    """When a trial on a slot was last heard from, and what happens to one that hangs; empty for any other trial."""
    if trial.state is not TrialState.RUNNING or spec.template is None:
        return ""
    timeout = spec.template.report_timeout
    ends = (
        f"one that hangs is stopped after {duration(timeout.total_seconds())}"
        if timeout
        else "nothing stops one that hangs: trial.report_timeout_s would"
    )
    return f"{ago(heard or trial.started, now)}; {ends}"


def size(value: int) -> str:
    """Bytes in GiB, MiB or KiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value} B"


def percent(part: float, whole: float) -> str:
    """`61 %`; `-` if the whole is 0."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def plural(count: int, word: str, many: str | None = None) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count} {word if count == 1 else many or word + 's'}"
