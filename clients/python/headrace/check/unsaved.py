"""The remaining suspects if no variable explains why the runs diverge. Pure functions.

Most steps first set a module's mode, and many variables live only within a step. So these are named only if
nothing else is found: state of a module, an optimizer or the process outside every variable, and an object
created in the loop.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from headrace.check.harmless import NOTHING, Harmless
from headrace.check.report import Missing
from headrace.check.settings import ENVIRONMENT, EVALUATING, FROZEN, HOOKS, TRAINED, TRAINING, listed_briefly
from headrace.check.snapshot import Framework, Kind, Moment, SegmentResult, Snapshot, by_name

_Signs = Callable[[Snapshot, Snapshot, Snapshot], Iterator[Missing]]
_EVERY_STEP = "in every step by the step's number, not once"
_NOWHERE = "no state_dict() holds that"


def unsaved(chain: Sequence[SegmentResult], excused: Harmless = NOTHING) -> tuple[Missing, ...]:
    """The first such changes by a restore that are not `excused`, of the most suspicious kind."""
    looks: tuple[_Signs, ...] = (_trainable, _settings, _modes, _objects)
    if excused.end_explained:
        looks = (_trainable, _settings, _modes)
    for look in looks:
        for before, after in pairwise(chain):
            saved = before.last(Moment.REPORTED)
            if saved is None or before.begun is None or after.begun is None:
                continue
            if look is _modes and before.framework is Framework.TRANSFORMERS:
                continue  # the Trainer evaluates before the report, and calls model.train() in each step
            at = (_without(moment, excused.settings) for moment in (before.begun, saved, after.begun))
            if found := tuple(look(*at)):
                return found
    return ()


def _without(moment: Snapshot, settings: Collection[str]) -> Snapshot:
    left = {name: value for name, value in moment.settings.items() if name not in settings}
    return replace(moment, settings=left)


def trained_otherwise(names: Sequence[str], was: str, now: str, step: int) -> Missing:
    """The finding for parameters that a restore freezes or unfreezes."""
    return Missing(
        kind=Kind.MODULE,
        finding=f"requires_grad of {listed_briefly(names)} is {was} when saved, and {now} after the restore: "
        "no state_dict() holds it",
        remedy="set requires_grad in every step by the step's number, as in `layer.requires_grad_(step >= 3)`, "
        "not once",
        step=step,
    )


def _trainable(_: Snapshot, saved: Snapshot, restored: Snapshot) -> Iterator[Missing]:
    """Parameters that a restore freezes or unfreezes, though perhaps only until the step sets them."""
    for was, now in ((TRAINED, FROZEN), (FROZEN, TRAINED)):
        names = [
            name
            for name, value in saved.settings.items()
            if (value, restored.settings.get(name)) == (was, now)
        ]
        if names:
            yield trained_otherwise(names, was, now, saved.step)


def _modes(_: Snapshot, saved: Snapshot, restored: Snapshot) -> Iterator[Missing]:
    """Modules that a restore puts into a different mode."""
    was, now = saved.settings, restored.settings
    modules = [
        name for name, mode in was.items() if mode in (TRAINING, EVALUATING) and now.get(name, mode) != mode
    ]
    if modules:
        first = modules[0]
        yield Missing(
            kind=Kind.MODULE,
            finding=f"module {listed_briefly(modules)} is {was[first]} when saved, and {now[first]} "
            "after the restore: no state_dict() holds the mode",
            remedy=f"begin each step with model.train(), if it is to train so, and set what is to differ {_EVERY_STEP}",
            step=saved.step,
        )


def _settings(begun: Snapshot, saved: Snapshot, restored: Snapshot) -> Iterator[Missing]:
    """What the loop has changed and a restore does not bring back: hooks, attributes of optimizers, environment
    variables.
    """
    start, was, now = begun.settings, saved.settings, restored.settings
    for name in sorted(start.keys() | was.keys() | now.keys()):
        value = was.get(name, "")
        if value in (TRAINING, EVALUATING, TRAINED, FROZEN) or not start.get(name, "") != value != now.get(
            name, ""
        ):
            continue
        after = now.get(name)
        if name.startswith(ENVIRONMENT):
            kind, remedy = Kind.VALUE, f"set the environment variable {_EVERY_STEP}"
            finding = f"`{name}` changes in the loop, and a restore undoes that: no checkpoint holds the environment"
        elif name.startswith(HOOKS):
            kind, remedy = Kind.MODULE, f"add and remove hooks {_EVERY_STEP}"
            finding = f"{name} are {value or 0} when saved, and {after or 0} after the restore: {_NOWHERE}"
        else:
            kind, remedy = Kind.SETTINGS, f"set it {_EVERY_STEP}"
            told = value or "not set", after or "not set"
            finding = f"`{name}` is {told[0]} when saved, and {told[1]} after the restore: {_NOWHERE}"
        yield Missing(kind=kind, finding=finding, remedy=remedy, step=saved.step)


def _objects(begun: Snapshot, saved: Snapshot, restored: Snapshot) -> Iterator[Missing]:
    """Variables in which the loop has replaced a plain value, such as None, with an object."""
    start, was, now = (by_name(moment.variables) for moment in (begun, saved, restored))
    for name in sorted(start.keys() & now.keys() - was.keys()):
        if start[name] == now[name] and name in start[name]:
            held = "an iterator" if name in saved.iterators else "an object"
            yield Missing(
                kind=Kind.DATA if name in saved.iterators else Kind.VALUE,
                finding=f"`{name}` holds {held} when saved, which no checkpoint holds, and is {now[name][name]} after "
                "the restore",
                remedy=f"keep in t.state what `{name}` is made from, and make it again before the loop",
                step=saved.step,
            )
