"""How a script keeps a variable across a pause, in the words of the documentation. Pure.

As in its section on early stopping: a short key in `t.state`, read before the loop with the first value as the
default, and set before each report.
"""

import ast
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import pairwise

from headrace.check.plain_values import NAMED, is_choice
from headrace.check.snapshot import Moment, Owner, OwnerKind, SegmentResult, by_name

_SAVED_BY = {
    OwnerKind.LIGHTNING_CALLBACK: "return `{attribute}` from {label}.state_dict() and set it in load_state_dict(): "
    "Lightning saves what a callback returns there",
    OwnerKind.LIGHTNING_MODULE: "save `{attribute}` in {label}.on_save_checkpoint() and read it back in "
    "on_load_checkpoint(), which Lightning calls",
    OwnerKind.TRAINER_CALLBACK: "make {label} an ExportableState, `class {label}(TrainerCallback, ExportableState)`, "
    "whose state() has `{attribute}` among its attributes: the Trainer saves it",
}
_COUNT = "count("


class Keys:
    """The keys in `t.state` for the variables that change in a run, and their initial values."""

    def __init__(self, straight: SegmentResult) -> None:
        begun, ended = straight.begun, straight.last(Moment.REPORTED)
        self._first = begun.variables if begun is not None else {}
        self._of_frames = {name for at in (begun, ended) if at is not None for name in at.of_frames}
        at_loop = begun if begun is not None else ended
        self._of_globals = set(at_loop.of_globals) if at_loop is not None else set()
        start, end = by_name(self._first), by_name(ended.variables if ended is not None else {})
        changed = Counter(_last(name) for name in end if start.get(name) != end[name])
        self._late = _changed_after_report(straight)
        state = ended.by_key().get("t.state") if ended is not None else None
        self._taken = {name for name, count in changed.items() if count > 1} | set(
            state.parts if state else ()
        )

    def of(self, name: str) -> str:
        """The last part of the name; the whole name if another variable has that part, or if `t.state` has such
        a key.
        """
        last = _last(name)
        return "_".join(filter(str.isidentifier, _parts(name))) if last in self._taken else last

    def is_out_of_reach(self, name: str) -> bool:
        """Whether the variable belongs to a closure or a generator, so that the loop cannot set it."""
        return name.isidentifier() and name not in self._of_frames

    def is_global(self, name: str) -> bool:
        """Whether the loop's function can set the variable only after a `global` statement."""
        return name in self._of_globals

    def is_late(self, name: str) -> bool:
        """Whether the loop changes the variable after the report, when it is too late to save it."""
        return name in self._late

    def is_set_before(self, name: str) -> bool:
        """Whether the variable has a value before the loop, in a process that starts from scratch."""
        return name in self._first

    def first(self, name: str) -> str:
        """The first value as code; the variable itself if the value is unknown or not a constant."""
        value = self._first.get(name, name)
        try:
            ast.literal_eval(value)
        except (SyntaxError, ValueError):
            return name
        return value


def how_kept(
    name: str,
    saved: Mapping[str, str],
    keys: Keys,
    modules: Collection[str],
    owners: Mapping[str, Owner],
    *,
    iterates: bool = False,
) -> str:
    """The remedy for this variable, which was `saved` with these values."""
    path, _, attribute = name.rpartition(".")
    owner, value = owners.get(path), saved.get(name, "#")
    function, _, argument = name.removesuffix(")").partition("(")
    if owner is not None:
        remedy = _SAVED_BY[owner.kind].format(attribute=attribute, label=owner.label)
    elif argument:
        remedy = (
            f"keep it in t.state, which is saved: call {function}(..., "
            f'{argument}=t.state.setdefault("{argument}", ...)), because a default is created once per process'
        )
    else:
        remedy = _in_state(name, value, keys)
    if path in modules and value.startswith("#") and not iterates:
        return f"make it a buffer, {path}.register_buffer({attribute!r}, ...), or {remedy}"
    return remedy


def _in_state(name: str, value: str, keys: Keys) -> str:
    key = keys.of(name)
    if keys.is_out_of_reach(name):
        first = keys.first(name)
        return (
            f"keep it in t.state in place of `{name}`, which belongs to a closure or a generator: "
            f'`t.state.setdefault("{key}", {"..." if first == name else first})` before the loop, and '
            f'`t.state["{key}"]` in the function'
        )
    if value.startswith(_COUNT):
        return (
            f'keep the number in t.state in place of the count: `t.state.setdefault("{key}", 0)` before the loop, '
            f'and `t.state["{key}"] += 1` in each step'
        )
    if value.startswith(NAMED):
        return (
            f'keep in t.state which one it is, `t.state["{key}"] = {name}.__name__` before each report, and set '
            f"`{name}`{', declared as global,' * keys.is_global(name)} by that name before the loop"
        )
    kind, save = "", name
    if is_choice(value):
        kind, save = value.rpartition(".")[0], f"{name}.name"
    first = save if kind else keys.first(name)
    loaded = f't.state.get("{key}", {first})' if keys.is_set_before(name) else f't.state["{key}"]'
    load = f"{name} = {kind}[{loaded}]" if kind else f"{name} = {loaded}"
    if not keys.is_set_before(name):
        load = f'if "{key}" in t.state: {load}'
    if keys.is_global(name):
        load = f"global {name}; {load}" if keys.is_set_before(name) else f"global {name}` and `{load}"
    remedy = f'keep it in t.state: `{load}` before the loop, `t.state["{key}"] = {save}` before each report'
    if keys.is_late(name):
        remedy += f", and move the lines that change `{name}` before that: after the report, a pause loses the change"
    return remedy


def _changed_after_report(straight: SegmentResult) -> set[str]:
    """The variables that differ between a report and the end of the loop's body."""
    late: set[str] = set()
    for one, other in pairwise(straight.snapshots):
        if (one.moment, other.moment) == (Moment.REPORTED, Moment.BODY_ENDED):
            values = by_name(one.variables), by_name(other.variables)
            late |= {name for name, value in values[1].items() if values[0].get(name, value) != value}
    return late


def _parts(name: str) -> list[str]:
    return name.replace("[", ".").replace("]", "").replace("'", "").split(".")


def _last(name: str) -> str:
    found = [part for part in _parts(name) if part.isidentifier()]
    return found[-1] if found else "kept"
