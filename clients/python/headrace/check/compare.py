"""Names what a restore lost. Pure: takes results of processes, returns findings.

At each boundary three snapshots of the same step are compared: the state when the checkpoint was complete (the
end of one process), when the script came back to its loop, and when the next process started its loop. Anything
in the first and not in the last was not restored. Anything that changed between the first and the second changed
too late to be saved. Either counts as lost if, at the next report, it still differs from a run without the
pause. Each boundary is judged by its own two processes, so a loss at one boundary is not blamed again on
everything that it disturbs later.

Weaker signs (`suspects.py`) are used only if the curves or the ends diverge and no snapshot explains why.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from headrace.check.report import THE_END, UNTRACKED, Difference, Missing
from headrace.check.snapshot import End, Framework, Kind, Moment, Piece, Reported, SegmentResult, Snapshot

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
    Kind.STEP: "the steps are counted from 1 again",
    Kind.VALUE: "its state starts from nothing",
}
_DECIDE_FIRST = (
    'decide before a step, not after its report: `if t.state.get("stop"): {leave}` as the first line of the loop, '
    '`t.state["stop"] = {condition}` before each report'
)
_UNKNOWN_STOP = "break", "<whether to stop>"
_LOOP = "loop over t.steps(), which hands out the steps that are left, and keep what ends the loop in t.state"
_IN_FRAMEWORK = {
    Framework.LIGHTNING: "keep what ends the fit in what Lightning saves: the state_dict() of the callback that ends "
    "it, or the module's on_save_checkpoint()",
    Framework.TRANSFORMERS: "keep what ends the training in what the Trainer saves: make the callback that ends it "
    "an ExportableState",
}


def losses(
    chain: Sequence[SegmentResult], unpaused: SegmentResult | None = None, *, late: bool = False
) -> tuple[Missing, ...]:
    """What these processes, each resumed from the previous one, lacked when they started their loops.

    A framework may restore later: Lightning gives a callback its values when the next epoch starts. So with the
    run that was `unpaused`, only state that still differs from it at the next report counts; with `late`, only
    state that does not.
    """
    found: dict[tuple[str, str], Missing] = {}
    lasting: dict[tuple[str, str], set[bool]] = {}
    for number, result in enumerate(chain):
        saved = result.last(Moment.REPORTED)
        if saved is None:
            continue
        restored = chain[number + 1] if number + 1 < len(chain) else None
        differs = _differs_next(restored, unpaused)
        lost = ((missing, differs(keys)) for missing, keys in _lost_at(saved, result, restored))
        for missing, lasts in (*((one, True) for one in _steps_counted_anew(result)), *lost):
            same = missing.name, "the count" if missing.kind is Kind.STEP else missing.finding
            found.setdefault(same, missing)
            lasting.setdefault(same, set()).update(() if lasts is None else (lasts,))
    told = (missing for same, missing in found.items() if late == (lasting[same] == {False}))
    order = list(Kind)
    return tuple(sorted(told, key=lambda missing: (order.index(missing.kind), missing.step)))


def nothing_saved(result: SegmentResult) -> Missing:
    """The finding for a process that left no checkpoint."""
    saved = result.last(Moment.REPORTED)
    untracked = {piece.subject: None for piece in saved.pieces if not piece.saved_as} if saved else {}
    return Missing(
        kind=Kind.VALUE,
        finding=UNTRACKED,
        remedy="call t.track(model=..., optimizer=..., lr_scheduler=..., batches=...) before the loop, or keep what "
        "has no state_dict() in t.state, as bytes: t.state['model'] = pickle.dumps(model)",
        step=saved.step if saved else 0,
        evidence=tuple(f"not tracked: {subject}" for subject in untracked),
    )


def first_difference(
    straight: SegmentResult, chain: Sequence[SegmentResult], *, to_the_end: bool = True
) -> Difference | None:
    """Where the curves first diverge; if they do not and both are complete (`to_the_end`), where the state
    diverges.
    """
    resumed = [report for result in chain for report in result.reports]
    for mine, other in zip(straight.reports, resumed, strict=False):
        if mine.step != other.step:
            return Difference(step=mine.step, what="the step", straight=str(mine.step), other=str(other.step))
        for difference in _differing(mine, other):
            return difference
    if not to_the_end:
        return None
    if len(straight.reports) != len(resumed):
        counts = str(len(straight.reports)), str(len(resumed))
        return Difference(
            step=len(straight.reports), what="the number of reports", straight=counts[0], other=counts[1]
        )
    return _first_state_difference(straight, chain)


def metric_differences(straight: SegmentResult, again: SegmentResult) -> Iterator[Difference]:
    """Each metric that differs between two runs, at the first place where it does."""
    found: dict[str, Difference] = {}
    for mine, other in zip(straight.reports, again.reports, strict=False):
        for difference in _differing(mine, other):
            found.setdefault(difference.what, difference)
    yield from found.values()


def end_difference(straight: SegmentResult, chain: Sequence[SegmentResult]) -> Difference | None:
    """How two runs differ in the step at which they end, or in the way; None if they do not."""
    mine, other = _end_of([straight]), _end_of(chain)
    if mine == other:
        return None
    return Difference(step=mine[1], what=THE_END, straight=_told_end(*mine), other=_told_end(*other))


def ends_elsewhere(
    straight: SegmentResult, chain: Sequence[SegmentResult], stop: tuple[str, str] | None = None
) -> tuple[Missing, ...]:
    """The finding for a resumed run that ends at a different step, or in a different way. `stop` is how the script
    leaves its loop, and the condition, if its source shows that.
    """
    if end_difference(straight, chain) is None:
        return ()
    (kind, step), (other_kind, other) = _end_of([straight]), _end_of(chain)
    last, since = chain[-1], chain[-1].resume_step
    trains = f"without a pause it {_told_end(kind, step)}"
    if since >= step or straight.left_after_report:
        finding = (
            f"the script {_told_end(kind, step)}, and a trial that is resumed from that report trains on"
        )
        leave, condition = stop or _UNKNOWN_STOP
        remedy = _DECIDE_FIRST.format(leave=leave, condition=condition)
    elif not last.reports and last.end is End.RETURNED:
        finding, remedy = f"resumed after step {since}, the script reports nothing and ends: {trains}", _LOOP
    else:
        where = f"resumed after step {since}, the script" if since else "the script"
        finding, remedy = f"{where} {_told_end(other_kind, other)}: {trains}", _LOOP
    remedy = _IN_FRAMEWORK[straight.framework] if straight.framework is not None else remedy
    return (Missing(kind=Kind.END, finding=finding, remedy=remedy, step=since or step),)


def _differing(mine: Reported, other: Reported) -> Iterator[Difference]:
    for name in sorted(mine.metrics.keys() | other.metrics.keys()):
        values = mine.metrics.get(name, ""), other.metrics.get(name, "")
        if values[0] != values[1]:
            yield Difference(step=mine.step, what=name, straight=_shown(values[0]), other=_shown(values[1]))


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


def _differs_next(
    restored: SegmentResult | None, unpaused: SegmentResult | None
) -> Callable[[Collection[str]], bool | None]:
    """Whether any of these pieces differs from the run without a pause at the first report after a restore, or
    where the script ended without one; None if nothing can be compared.
    """
    if unpaused is None:
        return lambda _: True
    pair = next_reports(restored, unpaused)
    if pair is None:
        return lambda _: None
    mine, theirs = (at.by_key() for at in pair)
    return lambda keys: any(_parts(mine, key) != _parts(theirs, key) for key in keys)


def next_reports(restored: SegmentResult | None, unpaused: SegmentResult) -> tuple[Snapshot, Snapshot] | None:
    """The first report after a restore and the same report without a pause, or the ends of both runs if the
    script ends without another report; None if nothing can be compared.
    """
    others = reported_by_step([unpaused])
    shown = next((at for at in reported_in(restored) if at.step in others), None) if restored else None
    other = others[shown.step] if shown is not None else unpaused.last(Moment.RETURNED)
    if shown is None and restored is not None and not restored.reports:
        shown = restored.last(Moment.RETURNED)
    return None if shown is None or other is None else (shown, other)


def _parts(pieces: Mapping[str, Piece], key: str) -> dict[str, str] | None:
    return pieces[key].parts if key in pieces else None


def _lost_at(
    saved: Snapshot, result: SegmentResult, restored: SegmentResult | None
) -> Iterator[tuple[Missing, set[str]]]:
    """What the next process lacks when it starts, each with the keys of its pieces."""
    ended = result.last(Moment.BODY_ENDED)
    if ended is not None and ended.step == saved.step:
        for pieces in by_object(saved, ended):
            yield _moved_after_report(pieces, saved.step), {piece.key for piece, _ in pieces}
    begun = restored.begun if restored is not None else None
    if restored is None or begun is None:
        return
    tracked = restored.last(Moment.TRACKED)
    lost_at_track = (
        {piece.key for pieces in by_object(saved, tracked) for piece, _ in pieces} if tracked else set()
    )
    taken = {piece.saved_as for piece in saved.pieces}
    for pieces in by_object(saved, begun):
        keys = {piece.key for piece, _ in pieces}
        given_back = tracked is not None and lost_at_track.isdisjoint(keys)
        yield _not_restored(pieces, saved.step, given_back=given_back, taken=taken), keys


_Differing = list[tuple[Piece, list[str]]]


def by_object(one: Snapshot, other: Snapshot) -> list[_Differing]:
    """The pieces that differ, with the parts that differ; both sides of an optimizer together."""
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
        if role in taken:  # for example, a second model: the name `model=` is taken
            role = piece.variable if piece.variable.isidentifier() else f"{role}_2"
        remedy = f"add {role}={piece.variable or name} to t.track(...)"
        function, _, argument = piece.variable.removesuffix(")").partition("(")
        if argument:  # an argument's default, which no expression can read
            remedy = (
                f"make it before the loop, call {function}(..., {argument}={argument}), and add {role}={argument} to "
                "t.track(...)"
            )
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


def _first_state_difference(straight: SegmentResult, chain: Sequence[SegmentResult]) -> Difference | None:
    others = reported_by_step(chain)
    for mine in reported_by_step([straight]).values():
        other = others.get(mine.step)
        for pieces in by_object(mine, other) if other is not None else ():
            piece, parts = pieces[0]
            one, _, two = parts[0].partition(", then ")
            return Difference(
                step=mine.step, what=f"{piece.kind.value} of {piece.subject}", straight=one, other=two
            )
    return _difference_at_the_end(straight, chain[-1])


def _difference_at_the_end(straight: SegmentResult, last: SegmentResult) -> Difference | None:
    """For a trial that ends by itself, the state that the script leaves is kept, including changes after its
    last report.
    """
    mine, other = straight.last(Moment.RETURNED), last.last(Moment.RETURNED)
    if mine is None or other is None:
        return None
    for pieces in by_object(mine, other):
        piece, parts = pieces[0]
        if piece.saved_as and piece.kind not in (Kind.RNG, Kind.STEP):
            one, _, two = parts[0].partition(", then ")
            what = f"{piece.kind.value} of {piece.subject} when the script has ended"
            return Difference(step=mine.step, what=what, straight=one, other=two)
    return None


def reported_in(result: SegmentResult) -> list[Snapshot]:
    """A process's snapshots at reports."""
    return [found for found in result.snapshots if found.moment is Moment.REPORTED]


def reported_by_step(chain: Iterable[SegmentResult]) -> dict[int, Snapshot]:
    """The first report snapshot of each step."""
    first: dict[int, Snapshot] = {}
    for found in (found for result in chain for found in reported_in(result)):
        first.setdefault(found.step, found)
    return first


def _shown(value: str) -> str:
    return repr(float.fromhex(value)) if value else "not reported"
