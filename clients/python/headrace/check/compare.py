"""Names what a restore lost. Pure: results of processes in, findings out.

At each boundary three photographs of the same step are laid side by side: the state when the checkpoint was
complete (end of one process), when the script came back to its loop, and when the next process began its
loop. What was in the first and is not in the last was not restored; what changed between the first and the
second was changed too late to be saved. Because each boundary is judged by its own two processes, a loss at
one is not blamed again on everything that it disturbs later.

Only when the curves or the ends part and no photograph explains it are weaker signs used: a counter in a variable, a
generator seeded once more, an iterator that starts over. A variable that a restore resets is always reported: where
nothing that was compared depends on it, as a warning.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from headrace.check.report import THE_END, Difference, Missing
from headrace.check.snapshot import End, Kind, Moment, Piece, SegmentResult, Snapshot

# What follows a container's name on the way to one of its items.
_ITEMS = re.compile(r"(\[[^\[\]]*\])+$")
_ROLES = {
    Kind.WEIGHTS: "model",
    Kind.MOMENTS: "optimizer",
    Kind.SETTINGS: "optimizer",
    Kind.SCHEDULE: "lr_scheduler",
    Kind.SCALER: "scaler",
    Kind.DATA: "batches",
    Kind.RNG: "generator",
}
_WHAT_HAPPENS = {
    Kind.WEIGHTS: "the weights are those of a new model",
    Kind.MOMENTS: "its moments start from nothing",
    Kind.SETTINGS: "its settings are the initial ones",
    Kind.SCHEDULE: "the schedule restarts",
    Kind.SCALER: "the scale restarts",
    Kind.DATA: "the sampler starts its epoch again",
    Kind.RNG: "the random numbers repeat",
    Kind.STEP: "the steps are counted anew",
    Kind.VALUE: "its state starts from nothing",
}
_DECIDE_FIRST = (
    "decide before a step, not after its report: keep what decides in t.state, and ask for it first in the loop, as in "
    "`if t.state['bad'] >= 3: break`"
)
_LOOP = "loop over t.steps(), which hands out the steps that are left, and keep what ends the loop in t.state"


def losses(chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """What the checkpoints of these processes, each resumed from the one before, did not hold: certain losses."""
    found: dict[tuple[str, str], Missing] = {}
    for number, result in enumerate(chain):
        saved = result.last(Moment.REPORTED)
        if saved is None:
            continue
        restored = chain[number + 1] if number + 1 < len(chain) else None
        for missing in (*_steps_counted_anew(result), *_lost_at(saved, result, restored)):
            same = "the count" if missing.kind is Kind.STEP else missing.finding
            found.setdefault((missing.name, same), missing)
    order = list(Kind)
    return tuple(sorted(found.values(), key=lambda missing: (order.index(missing.kind), missing.step)))


def first_difference(
    straight: SegmentResult, chain: Sequence[SegmentResult], *, to_the_end: bool = True
) -> Difference | None:
    """Where the curves part first; where they never do and both are whole (`to_the_end`), where the state does."""
    resumed = [report for result in chain for report in result.reports]
    for mine, other in zip(straight.reports, resumed, strict=False):
        if mine.step != other.step:
            return Difference(step=mine.step, what="the step", straight=str(mine.step), other=str(other.step))
        for name in sorted(mine.metrics.keys() | other.metrics.keys()):
            values = mine.metrics.get(name, ""), other.metrics.get(name, "")
            if values[0] != values[1]:
                shown = [_shown(value) for value in values]
                return Difference(step=mine.step, what=name, straight=shown[0], other=shown[1])
    if not to_the_end:
        return None
    if len(straight.reports) != len(resumed):
        counts = str(len(straight.reports)), str(len(resumed))
        return Difference(
            step=len(straight.reports), what="the number of reports", straight=counts[0], other=counts[1]
        )
    return _first_state_difference(straight, chain)


def end_difference(straight: SegmentResult, chain: Sequence[SegmentResult]) -> Difference | None:
    """Whether two runs end at another step, or in another way."""
    mine, other = _end_of([straight]), _end_of(chain)
    if mine == other:
        return None
    return Difference(step=mine[1], what=THE_END, straight=_told_end(*mine), other=_told_end(*other))


def ends_elsewhere(straight: SegmentResult, chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """What to say of a resumed run that ends at another step, or in another way, by where it does."""
    if end_difference(straight, chain) is None:
        return ()
    (kind, step), (other_kind, other) = _end_of([straight]), _end_of(chain)
    last, since = chain[-1], chain[-1].resume_step
    trains = f"without a pause it {_told_end(kind, step)}"
    if since >= step or straight.left_after_report:
        finding = (
            f"the script {_told_end(kind, step)}, and a trial that is resumed from that report trains on"
        )
        remedy = _DECIDE_FIRST
    elif not last.reports and last.end is End.RETURNED:
        finding, remedy = f"resumed after step {since}, the script reports nothing and ends: {trains}", _LOOP
    else:
        where = f"resumed after step {since}, the script" if since else "the script"
        finding, remedy = f"{where} {_told_end(other_kind, other)}: {trains}", _LOOP
    return (Missing(kind=Kind.END, finding=finding, remedy=remedy, step=since or step),)


def resets(straight: SegmentResult, chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """The variables that a restore resets, each once.

    One that is reset again and again never comes far in the resumed run: a patience that starts over with every process
    counts nothing. So a variable counts as reset too where it had changed by then in the straight run.
    """
    found: dict[str, Missing] = {}
    unpaused = _reported_by_step([straight])
    for before, after in pairwise(chain):
        saved = before.last(Moment.REPORTED)
        without = unpaused.get(saved.step) if saved is not None else None
        for start, at in ((before.begun, saved), (straight.begun, without)):
            for missing in _variables_reset(start, at, after.begun):
                found.setdefault(missing.remedy, missing)
    return tuple(found.values())


def _end_of(chain: Sequence[SegmentResult]) -> tuple[End, int]:
    """How a run ended, and the last step that it reported."""
    last = chain[-1]
    left = last.end is End.PAUSED and last.left
    furthest = max((step for result in chain for step in result.steps), default=0)
    return End.RETURNED if left else last.end, max(furthest, last.resume_step)


def _told_end(end: End, step: int) -> str:
    match end:
        case End.RETURNED:
            return f"ends by itself after step {step}"
        case End.BUDGET:
            return f"ends with its budget, after step {step}"
        case _:
            return f"still trains at step {step}"


def suspects(straight: SegmentResult, chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """What may explain that the curves part, where `losses` found nothing."""
    steps = tuple(_steps_repeated(straight)) or tuple(_loop_variables(straight, chain))
    if steps:
        return steps
    found: dict[str, Missing] = {}
    for before, after in pairwise(chain):
        signs = (
            *_seeded_again(after),
            *_variables_reset(before.begun, before.last(Moment.REPORTED), after.begun),
            *_iterators_restarted(before, after),
            *_fetched_ahead(before),
        )
        for missing in signs:
            # A variable is named once, whatever its values at later boundaries.
            found.setdefault(missing.remedy if missing.kind is Kind.VALUE else missing.finding, missing)
    for missing in resets(straight, chain):
        found.setdefault(missing.remedy, missing)
    return tuple(found.values()) or tuple(_loop_of_its_own(straight))


def _lost_at(saved: Snapshot, result: SegmentResult, restored: SegmentResult | None) -> Iterator[Missing]:
    ended = result.last(Moment.BODY_ENDED)
    if ended is not None and ended.step == saved.step:
        for pieces in _by_object(saved, ended):
            yield _moved_after_report(pieces, saved.step)
    begun = restored.begun if restored is not None else None
    if restored is None or begun is None:
        return
    tracked = restored.last(Moment.TRACKED)
    lost_at_track = (
        {piece.key for pieces in _by_object(saved, tracked) for piece, _ in pieces} if tracked else set()
    )
    taken = {piece.saved_as for piece in saved.pieces}
    for pieces in _by_object(saved, begun):
        given_back = tracked is not None and not any(piece.key in lost_at_track for piece, _ in pieces)
        yield _not_restored(pieces, saved.step, given_back=given_back, taken=taken)


_Differing = list[tuple[Piece, list[str]]]


def _by_object(one: Snapshot, other: Snapshot) -> list[_Differing]:
    """The pieces that differ, with their differing parts; both sides of an optimizer together."""
    others = other.by_key()
    objects: dict[str, _Differing] = {}
    for piece in one.pieces:
        if piece.key not in others:
            continue
        parts = piece.parts, others[piece.key].parts
        names = [name for name in (parts[0] | parts[1]) if parts[0].get(name) != parts[1].get(name)]
        if names:
            shown = [
                f"{name}: {parts[0].get(name, 'none')}, then {parts[1].get(name, 'none')}" for name in names
            ]
            whole = piece.key.removesuffix(" moments").removesuffix(" settings")
            objects.setdefault(whole, []).append((piece, shown))
    return list(objects.values())


def _not_restored(pieces: _Differing, step: int, *, given_back: bool, taken: set[str]) -> Missing:
    piece, _ = pieces[0]
    what = _WHAT_HAPPENS[piece.kind]
    role = _ROLES.get(piece.kind, "state")
    if not piece.saved_as:
        name = piece.variable if piece.variable.isidentifier() else f"<the {piece.label}>"
        finding = f"{piece.subject} is not tracked: {what}"
        if role in taken:  # a second model, say: `model=` is another one's name
            role = piece.variable if piece.variable.isidentifier() else f"{role}_2"
        remedy = f"add {role}={piece.variable or name} to t.track(...)"
    elif piece.kind is Kind.RNG and piece.saved_as == "(global)":
        finding = f"{piece.label} is not as it was saved: {what}"
        remedy = "loop over t.steps(), which restores the generators last, and seed nothing after it"
    elif piece.kind is Kind.STEP:
        finding, remedy = f"the trial resumes at another step: {what}", "loop over t.steps()"
    elif piece.shared:
        finding = (
            f"{piece.subject} is tracked with shared(...), and is not as rank 0's, which every rank is given"
        )
        name = piece.saved_as
        remedy = f"write {name}={piece.variable or name} in t.track(...), so that each rank saves its own"
    elif given_back:
        finding = f"{piece.subject} is restored by t.track(...), and changed before the loop"
        remedy = "call t.track(...) last, when everything is built and initialised"
    else:
        finding = f"{piece.subject} is tracked, but its load_state_dict() does not restore what its state_dict() took"
        remedy = f"make load_state_dict() of {piece.label} restore everything that the next step reads"
    return Missing(
        kind=piece.kind, finding=finding, remedy=remedy, step=step, evidence=_evidence(pieces, step)
    )


def _moved_after_report(pieces: _Differing, step: int) -> Missing:
    piece, _ = pieces[0]
    return Missing(
        kind=piece.kind,
        finding=f"{piece.subject} changes after t.report(...), so a pause loses the change",
        remedy="make t.report(...) the last line of the loop's body",
        step=step,
        evidence=_evidence(pieces, step),
    )


def _evidence(pieces: _Differing, step: int) -> tuple[str, ...]:
    lines = []
    for piece, parts in pieces:
        more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
        lines.append(f"{piece.kind.value} at step {step}, saved then restored: {'; '.join(parts[:3])}{more}")
    return tuple(lines)


def _steps_counted_anew(result: SegmentResult) -> Iterator[Missing]:
    if result.resume_step and result.reports and result.reports[0].step <= result.resume_step:
        yield Missing(
            kind=Kind.STEP,
            finding=f"resumed after step {result.resume_step}, the script reports step {result.reports[0].step} again",
            remedy="loop over t.steps(), or start at t.step + 1; keep a count of your own in t.state, which is saved",
            step=result.resume_step,
        )


def _steps_repeated(straight: SegmentResult) -> Iterator[Missing]:
    counts = Counter(reported.step for reported in straight.reports)
    step, count = counts.most_common(1)[0]
    if count > 1:
        yield Missing(
            kind=Kind.STEP,
            finding=f"step {step} is reported {count} times: a pause at the first loses what the others trained",
            remedy="report each step once, when it is done",
            step=step,
        )


def _loop_variables(straight: SegmentResult, chain: Sequence[SegmentResult]) -> Iterator[Missing]:
    """A variable that counted the steps in the straight run, and does not in the resumed one."""
    mine, others = _reported(straight), _reported_by_step(chain)
    if len(mine) < 2:
        return
    for name in sorted(name for name in mine[0].variables if name.isidentifier()):
        behind = _counts_steps(name, mine)
        if behind is None:
            continue
        start = "t.step" if behind else "t.step + 1"
        for at in mine:
            other = others.get(at.step)
            if other is not None and other.variables.get(name) != str(at.step - behind):
                yield Missing(
                    kind=Kind.STEP,
                    finding=f"`{name}` is {other.variables.get(name)} at step {at.step}: it counts the steps anew",
                    remedy=f"write `for {name} in t.steps()`{', which counts from 1' * (behind == 1)}, "
                    f"or start at {start}, read before the loop",
                    step=at.step,
                )
                break


def _counts_steps(name: str, reported: Sequence[Snapshot]) -> int | None:
    """By how much the variable, whole, is behind the step at every report; None where that differs."""
    values = [at.variables.get(name, "") for at in reported]
    if not all(value.isdecimal() for value in values):
        return None
    behind = {at.step - int(value) for at, value in zip(reported, values, strict=True)}
    return behind.pop() if behind in ({0}, {1}) else None


def _loop_of_its_own(straight: SegmentResult) -> Iterator[Missing]:
    """What is left to suspect where the script reports outside `t.steps()`."""
    if straight.last(Moment.BEGUN) is None:
        yield Missing(
            kind=Kind.STEP,
            finding="it reports outside t.steps(): a loop of its own, as over range(...), begins anew in each process",
            remedy="loop over t.steps(), or begin after t.step, read before the loop",
            step=0,
        )


def _seeded_again(result: SegmentResult) -> Iterator[Missing]:
    for call in result.seeded:
        yield Missing(
            kind=Kind.RNG,
            finding=f"{call} seeds again after the restore: the random numbers repeat",
            remedy="seed before t.track(...), or not at all: the trial has been seeded with t.seed",
            step=result.resume_step,
        )


def _variables_reset(
    start: Snapshot | None, saved: Snapshot | None, restored: Snapshot | None
) -> Iterator[Missing]:
    """What had changed since the loop began when it was saved, and is something else after the restore."""
    if saved is None or start is None or restored is None:
        return
    modules = {piece.variable for piece in saved.pieces if piece.kind is Kind.WEIGHTS and piece.variable}
    at_start, at_save, at_restore = (_by_name(moment.variables) for moment in (start, saved, restored))
    for name in sorted(at_start.keys() & at_save.keys() & at_restore.keys()):
        if at_start[name] != at_save[name] != at_restore[name]:
            yield _variable_reset(
                name, at_start[name], at_save[name], at_restore[name], step=saved.step, modules=modules
            )


_Values = dict[str, str]


def _by_name(variables: _Values) -> dict[str, _Values]:
    """The values by name: a dictionary or a list, and all that it holds, is one."""
    found: dict[str, _Values] = {}
    for path, value in variables.items():
        found.setdefault(_ITEMS.sub("", path), {})[path] = value
    return found


def _variable_reset(
    name: str, start: _Values, saved: _Values, restored: _Values, *, step: int, modules: set[str]
) -> Missing:
    """A name and its values. One that is long, or is a tensor, stands as its digest."""
    plain = saved.get(name, "#"), restored.get(name, "#")
    if not any(value.startswith("#") for value in plain):
        finding = f"variable `{name}` is {plain[0]} when saved, and {plain[1]} after the restore"
    elif restored == start:
        finding = f"`{name}` is not saved: after the restore it is as it was before the loop"
    else:
        finding = f"`{name}` is not saved: after the restore it is another"
    owner, _, attribute = name.rpartition(".")
    remedy = f"keep it in t.state[{name!r}], which is saved"
    if owner in modules and plain[0].startswith("#"):
        remedy = f"make it a buffer, {owner}.register_buffer({attribute!r}, ...), or {remedy}"
    return Missing(kind=Kind.VALUE, finding=finding, remedy=remedy, step=step)


def _iterators_restarted(before: SegmentResult, after: SegmentResult) -> Iterator[Missing]:
    saved, restored = before.last(Moment.REPORTED), after.begun
    if saved is None or restored is None:
        return
    for name in sorted(set(saved.iterators) & set(restored.iterators)):
        yield Missing(
            kind=Kind.DATA,
            finding=f"`{name}` is an iterator, which no checkpoint can hold: it starts again",
            remedy="draw batches from trial.ResumableBatches, and track it",
            step=saved.step,
        )


def _fetched_ahead(before: SegmentResult) -> Iterator[Missing]:
    saved = before.last(Moment.REPORTED)
    for name in saved.ahead if saved is not None else ():
        yield Missing(
            kind=Kind.DATA,
            finding=f"the workers of DataLoader `{name}` fetch batches ahead of the loop: a save skips them",
            remedy="report at the end of an epoch of the loader, or use num_workers=0",
            step=saved.step if saved is not None else 0,
        )


def _first_state_difference(straight: SegmentResult, chain: Sequence[SegmentResult]) -> Difference | None:
    others = _reported_by_step(chain)
    for mine in _reported_by_step([straight]).values():
        other = others.get(mine.step)
        for pieces in _by_object(mine, other) if other is not None else ():
            piece, parts = pieces[0]
            one, _, two = parts[0].partition(", then ")
            return Difference(
                step=mine.step, what=f"{piece.kind.value} of {piece.subject}", straight=one, other=two
            )
    return None


def _reported(result: SegmentResult) -> list[Snapshot]:
    return [found for found in result.snapshots if found.moment is Moment.REPORTED]


def _reported_by_step(chain: Iterable[SegmentResult]) -> dict[int, Snapshot]:
    """The first one of each step."""
    first: dict[int, Snapshot] = {}
    for found in (found for result in chain for found in _reported(result)):
        first.setdefault(found.step, found)
    return first


def _shown(value: str) -> str:
    return repr(float.fromhex(value)) if value else "not reported"
