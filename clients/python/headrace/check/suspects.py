"""Weaker signs, used if curves or ends diverge and no snapshot explains why. Pure functions.

Examples are a counter in a variable, a generator that is seeded again, an iterator that starts over. A variable
that a restore resets is always reported; if nothing that was compared depends on it, as a warning.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from headrace.check.caches import SAME_AGAIN, caches_emptied, same_again
from headrace.check.compare import end_difference, first_difference, losses, reported_by_step, reported_in
from headrace.check.harmless import harmless
from headrace.check.loaders import LoaderState
from headrace.check.remedies import Keys, how_kept
from headrace.check.report import Missing
from headrace.check.settings import FROZEN, TRAINED, listed_briefly
from headrace.check.snapshot import Kind, Moment, SegmentResult, Snapshot, by_name
from headrace.check.unsaved import trained_otherwise, unsaved

_GENERATORS = {"random": "global python", "numpy.random": "global numpy", "torch": "global torch"}
"""Maps the module whose functions seed a generator to the generator's key."""
_OF_LOADERS = {
    LoaderState.AHEAD: (
        "the workers of DataLoader `{name}` fetch batches ahead of the loop: a save skips them",
        "report at the end of an epoch of the loader, or use num_workers=0",
    ),
    LoaderState.PERSISTENT: (
        "a pause ends the persistent workers of DataLoader `{name}`, with their generators and copies of the dataset",
        "use persistent_workers=False: then each epoch has new workers, without a pause too",
    ),
    LoaderState.WITHIN: (
        "DataLoader `{name}` is within an epoch at the report: after a pause it begins another",
        "report at the end of an epoch of the loader, or draw batches from trial.ResumableBatches, and track it",
    ),
}


def resets(straight: SegmentResult, chain: Sequence[SegmentResult]) -> tuple[Missing, ...]:
    """The variables that a restore resets, each once.

    A variable that is reset again and again never gets far in the resumed run: a patience that starts over with
    every process counts nothing. So a variable also counts as reset if it had changed by then in the straight
    run and is as in a fresh start. This holds only up to the step at which the runs diverge, as later everything
    that follows from a loss differs too.
    """
    found: dict[str, Missing] = {}
    parting = first_difference(straight, chain, to_the_end=False)
    parted = inf if parting is None else parting.step
    unpaused, keys = reported_by_step([straight]), Keys(straight)
    for before, after in pairwise(chain):
        saved = before.last(Moment.REPORTED)
        without = unpaused.get(saved.step) if saved is not None else None
        found_here = [*_variables_reset(keys, before.begun, saved, after.begun)]
        if saved is not None and saved.step < parted:
            found_here += _variables_reset(keys, straight.begun, without, after.begun, to_fresh=True)
        for missing in found_here:
            found.setdefault(missing.remedy, missing)
    return tuple(found.values())


def suspects(
    straight: SegmentResult, chain: Sequence[SegmentResult], unpaused: SegmentResult
) -> tuple[Missing, ...]:
    """What may explain why the runs diverge if `losses` found nothing. `unpaused` is a second straight run,
    which captures the state after each restore.
    """
    excused = harmless(straight, chain, unpaused)
    late = () if excused.end_explained else _restored_late(chain, unpaused)
    steps = tuple(_steps_repeated(straight)) or tuple(_loop_variables(straight, chain))
    if steps:
        return (*late, *steps)
    found: dict[str, Missing] = {}
    keys = Keys(straight)
    for before, after in pairwise(chain):
        caches = tuple(caches_emptied(before, after))
        doubted = same_again(unpaused, after) if caches else frozenset()
        iterators = tuple(_iterators_restarted(before, after))
        # State that is too large to inspect may have an effect at any later step.
        hidden = (
            *_aliased(before),
            *_gradients_carried(straight, after),
            *_seeded_again(unpaused, after),
            *caches,
        )
        positions = (*iterators, *_of_loaders(before, but=(LoaderState.WITHIN,) if iterators else ()))
        signs = (
            *(() if excused.end_explained else hidden),
            *_trainable_otherwise(unpaused, before, after),
            *_variables_reset(keys, before.begun, before.last(Moment.REPORTED), after.begun, doubted=doubted),
            *(() if excused.end_explained else positions),
        )
        for missing in signs:
            # A variable is named once, no matter what its values at later boundaries are.
            found.setdefault(missing.remedy if missing.kind is Kind.VALUE else missing.finding, missing)
    for missing in resets(straight, chain):
        found.setdefault(missing.remedy, missing)
    named = tuple(missing for missing in found.values() if missing.variable not in excused.variables)
    named = named or unsaved(chain, excused) or tuple(_loop_of_its_own(straight))
    if not (late or named) and end_difference(straight, chain) is None:
        named = tuple(_doubted(missing) for missing in found.values())
    return (*late, *named)


def _restored_late(chain: Sequence[SegmentResult], unpaused: SegmentResult) -> tuple[Missing, ...]:
    """What a process lacks when it starts its loop, and has again at the next report."""
    return tuple(_doubted(missing) for missing in losses(chain, unpaused, late=True))


def _doubted(missing: Missing) -> Missing:
    return replace(missing, evidence=(*missing.evidence, SAME_AGAIN))


def _aliased(before: SegmentResult) -> Iterator[Missing]:
    """Values in `t.state` that shared memory when saved and that a restore turns into copies."""
    saved = before.last(Moment.REPORTED)
    if saved is None:
        return
    for key, owner in saved.aliases.items():
        yield Missing(
            kind=Kind.VALUE,
            finding=f't.state["{key}"] is no copy: it changes with the tracked `{owner}`, until a restore parts them',
            remedy=f'keep a copy: t.state["{key}"] = copy.deepcopy(...)',
            step=saved.step,
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
    """Variables that count the steps in the straight run, but not in the resumed one."""
    mine, others = reported_in(straight), reported_by_step(chain)
    if len(mine) < 2:
        return
    for name in mine[0].of_frames:
        behind = _counts_steps(name, mine)
        if behind is None:
            continue
        start = "t.step" if behind else "t.step + 1"
        for at in mine:
            other = others.get(at.step)
            if other is not None and other.variables.get(name) != str(at.step - behind):
                yield Missing(
                    kind=Kind.STEP,
                    finding=f"`{name}` is {other.variables.get(name)} at step {at.step}, and "
                    f"{at.step - behind} without a pause: it starts again",
                    remedy=f"if it counts the loop, write `for {name} in t.steps()`"
                    f"{', which counts from 1' * (behind == 1)}, or start at {start}, read before the loop; "
                    "if it is computed, save what it is computed from",
                    step=at.step,
                )
                break


def _counts_steps(name: str, reported: Sequence[Snapshot]) -> int | None:
    """How far the variable is behind the step at every report (0 or 1); None if it is not such a count."""
    values = [at.variables.get(name, "") for at in reported]
    if not all(value.isdecimal() for value in values):
        return None
    behind = {at.step - int(value) for at, value in zip(reported, values, strict=True)}
    return behind.pop() if behind in ({0}, {1}) else None


def _loop_of_its_own(straight: SegmentResult) -> Iterator[Missing]:
    """The remaining suspect if the script reports outside `t.steps()`."""
    if straight.last(Moment.BEGUN) is None:
        yield Missing(
            kind=Kind.STEP,
            finding="it reports outside t.steps(): a loop of its own, as over range(...), restarts in each process",
            remedy="loop over t.steps(), or begin after t.step, read before the loop, and call t.track(), which "
            "restores the random generators",
            step=0,
        )


def _seeded_again(straight: SegmentResult, result: SegmentResult) -> Iterator[Missing]:
    """Generators that were seeded after the restore, unless their state is the same as without a pause."""
    if not result.resume_step:
        return
    unpaused = reported_by_step([straight])
    shown = next((at for at in reported_in(result) if at.step in unpaused), None)
    for call in result.seeded:
        key = next(key for module, key in _GENERATORS.items() if call.startswith(f"{module}."))
        if shown is not None and shown.by_key().get(key) == unpaused[shown.step].by_key().get(key):
            continue
        yield Missing(
            kind=Kind.RNG,
            finding=f"{call} seeds again after the restore: the random numbers repeat",
            remedy="seed before t.track(...), or not at all: the trial has been seeded with t.seed",
            step=result.resume_step,
        )


def _variables_reset(
    keys: Keys,
    start: Snapshot | None,
    saved: Snapshot | None,
    restored: Snapshot | None,
    *,
    to_fresh: bool = False,
    doubted: Collection[str] = (),
) -> Iterator[Missing]:
    """Variables that had changed between the start of the loop and the save, and have a different value after
    the restore: with `to_fresh`, their value at the start of the loop. State that a tracked object saves itself
    is left to `losses`. For variables in `doubted`, the evidence says why they are doubtful.
    """
    if saved is None or start is None or restored is None:
        return
    modules = {piece.variable for piece in saved.pieces if piece.kind is Kind.WEIGHTS and piece.variable}
    at_start, at_save, at_restore = (by_name(moment.variables) for moment in (start, saved, restored))
    lasting = start.holders.items() & saved.holders.items() & restored.holders.items()
    for name in sorted(at_save):
        was = at_start.get(name) or _of_class(name, start)
        now = at_restore.get(name) or _of_class(name, restored)
        if not (was and now) and not (_attribute_of(name, dict(lasting)) and was == now):
            continue
        if to_fresh and now != was:
            continue
        if was != at_save[name] != now and not _is_tracked(name, saved):
            yield Missing(
                kind=Kind.VALUE,
                finding=_how_reset(name, was, at_save[name], now),
                remedy=how_kept(name, at_save[name], keys, modules, saved.owners),
                step=saved.step,
                evidence=(SAME_AGAIN,) if name in doubted else (),
                variable=name,
            )


def _of_class(name: str, moment: Snapshot) -> "_Values":
    """The value of an attribute that is set on the object's class, not on the object."""
    return {name: moment.defaults[name]} if name in moment.defaults else {}


def _attribute_of(name: str, holders: Mapping[str, bool]) -> bool:
    """Whether the name is an attribute of one of these objects, which may be set at one time and missing at
    another.

    Private attributes of an object whose class derives from a library's belong to the library.
    """
    path, _, attribute = name.rpartition(".")
    return path in holders and (holders[path] or not attribute.startswith("_"))


def _is_tracked(name: str, saved: Snapshot) -> bool:
    """Whether the name is an attribute that the state_dict() of a tracked object contains under its name."""
    for piece in saved.pieces:
        attribute = name.removeprefix(f"{piece.variable}.")
        if piece.saved_as and piece.variable and attribute != name:
            attribute, _, _ = attribute.partition(".")
            if piece.parts.keys() & {attribute, attribute.lstrip("_")}:
                return True
    return False


_Values = dict[str, str]


def _how_reset(name: str, start: _Values, saved: _Values, restored: _Values) -> str:
    """The finding for a name and its values. A long value or a tensor is represented by its digest."""
    plain = saved.get(name, "#"), restored.get(name, "#")
    if not any(value.startswith("#") for value in plain):
        return f"variable `{name}` is {plain[0]} when saved, and {plain[1]} after the restore"
    if not restored:
        value = f"variable `{name}` is {plain[0]}" if plain[0][:1] != "#" else f"`{name}` has a value"
        return f"{value} when saved, which the loop has set: after the restore it is not so"
    if restored == start:
        return f"`{name}` is not saved: after the restore it is as it was before the loop"
    return f"`{name}` is not saved: after the restore it is another"


def _gradients_carried(straight: SegmentResult, after: SegmentResult) -> Iterator[Missing]:
    if names := sorted(straight.carried.get(after.resume_step, ())):
        yield Missing(
            kind=Kind.GRADIENTS,
            finding=f"the step after a report adds to the gradients of {listed_briefly(names)}, which no checkpoint "
            "holds: after a pause they start from nothing",
            remedy="begin each step with optimizer.zero_grad(), or end it with optimizer.step() and zero_grad() before "
            "the report",
            step=after.resume_step,
        )


def _trainable_otherwise(
    straight: SegmentResult, before: SegmentResult, after: SegmentResult
) -> Iterator[Missing]:
    """Parameters that are frozen, or trained, only after a restore, and still are at the next report."""
    saved, unpaused = before.last(Moment.REPORTED), reported_by_step([straight])
    shown = next((at for at in reported_in(after) if at.step in unpaused), None)
    if saved is None or after.begun is None or shown is None:
        return
    for was, now in ((TRAINED, FROZEN), (FROZEN, TRAINED)):
        names = [
            name
            for name, value in after.begun.settings.items()
            if value == now and saved.settings.get(name) == was
            if shown.settings.get(name) != unpaused[shown.step].settings.get(name)
        ]
        if names:
            yield trained_otherwise(names, was, now, saved.step)


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


def _of_loaders(before: SegmentResult, *, but: Collection[LoaderState]) -> Iterator[Missing]:
    """What a pause loses of loaders, except what is already reported of the script's own iterators over them."""
    saved = before.last(Moment.REPORTED)
    for name, states in saved.loaders.items() if saved is not None else ():
        for state in (state for state in states if state not in but):
            finding, remedy = _OF_LOADERS[state]
            yield Missing(
                kind=Kind.DATA,
                finding=finding.format(name=name),
                remedy=remedy,
                step=saved.step if saved is not None else 0,
            )
