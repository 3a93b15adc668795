"""Turns the discovered objects into pieces with fingerprints.

An object's key is its name in `t.track(...)`, or else the variable that leads to it, or else its class and its
position among the unnamed objects of its class. The key is the same in every process, because every process runs
the same script to the same point.
"""

import io
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import FrameType, GeneratorType
from typing import Any

import headrace
from headrace.check import discover
from headrace.check.aliases import aliases
from headrace.check.classes import Classes
from headrace.check.digest import digest
from headrace.check.loaders import LoaderState, states
from headrace.check.settings import plain_attributes, settings_of
from headrace.check.snapshot import (
    Framework,
    Kind,
    Moment,
    Piece,
    Snapshot,
    by_name,
    name_of,
)
from headrace.check.variables import Variables, is_plain
from headrace.trial import Trial, rng

GLOBAL = "(global)"
_HEADRACE = str(Path(headrace.__file__).parent)
_MOST_UNREAD = 16
_MOST_ELEMENTS_AT_A_GLANCE = 1 << 16


def nameless_classes() -> tuple[type, ...]:
    """The classes searched for on the heap, even if no variable leads to the object."""
    found = Classes.imported()
    return (*found.module, *found.optimizer, *found.schedule, *found.scaler, *found.loader)


def heap_classes() -> tuple[type, ...]:
    """All classes searched for on the heap."""
    return (*nameless_classes(), *Classes.imported().callback)


def capture(t: Trial, frame: FrameType | None, heap: discover.Heap, moment: Moment, step: int) -> Snapshot:
    """A snapshot of all state that can be found from this frame."""
    frames = discover.script_frames(frame)
    finds = _Finds(t.tracked_objects(), t.shared_objects())
    iterators = heap.find(finds.classes.loader_iterator)
    saved = {id(value) for value in t.tracked_objects().values()}
    lost: dict[str, tuple[LoaderState, ...]] = {}
    closed = _held_by_savers(t.tracked_objects())
    values = Variables(finds.classes)
    iterating: dict[str, None] = {}
    whole: set[str] = set()
    own = [*discover.variables_of(frames)]
    for found in discover.walk(own, is_plain, closed, values.unread):
        finds.add(found.value, found.path)
        if _has_state(found.value):
            whole.add(found.path)
        elif found.own and _is_iterator(found.value) and not is_plain(found.value):
            path = found.path
            # `.0` is the iterable of a generator expression; the expression itself has a name.
            if not path.startswith(".") and not any(path.startswith((f"{one}.", f"{one}[")) for one in whole):
                iterating[path] = None
        if issubclass(type(found.value), finds.classes.loader):
            lost[found.path] = states(found.value, iterators, saved)
        values.add(found)
    hidden = values.named(heap.find((*finds.classes.module, *finds.classes.callback)))
    for found in discover.walk(hidden, is_plain, closed, values.unread):
        values.add(found)
    for value in heap.find(nameless_classes()):
        finds.add(value, "")
        for path, part in discover.parts_of(value):
            finds.add(part, path)
    return Snapshot(
        moment=moment,
        step=step,
        pieces=(*finds.pieces(), *_global_pieces(t)),
        variables=values.found,
        of_frames=tuple(sorted({name for name, _ in own})),
        of_globals=tuple(sorted(discover.globals_of(frames) & {name for name, _ in own})),
        caches=values.caches,
        owners=values.owners,
        holders=values.holders,
        defaults=values.defaults,
        unread=tuple(islice(dict.fromkeys(map(name_of, values.unread)), _MOST_UNREAD)),
        iterators=tuple(sorted(iterating)),
        settings=finds.settings(),
        aliases=aliases(t.state, t.tracked_objects()),
        loaders={path: found for path, found in lost.items() if found},
    )


def tracked_modules(t: Trial) -> dict[str, Any]:
    """The modules that are tracked, by their names in `t.track(...)`."""
    modules = Classes.imported().module
    return {name: value for name, value in t.tracked_objects().items() if issubclass(type(value), modules)}


def glance(t: Trial, frame: FrameType | None) -> tuple[dict[str, int], Callable[[], dict[str, int]]]:
    """What a snapshot compares, by name, hashed, as far as it can be inspected at each step: the variables, and
    a function that reads the rest. Large arrays are left out, and so are weights and moments, which differ at
    each step.
    """
    finds = _Finds(t.tracked_objects(), t.shared_objects())
    values = Variables(finds.classes, room=_MOST_ELEMENTS_AT_A_GLANCE)
    variables = discover.variables_of(discover.script_frames(frame))
    for found in discover.walk(variables, is_plain, own_only=True):
        values.add(found)
        finds.add(found.value, found.path)
    seen = {name: hash(frozenset(held.items())) for name, held in by_name(values.found).items()}
    return seen, lambda: {f"beside {name}": hash(value) for name, value in finds.at_a_glance()}


def framework_of(tracked: dict[str, Any]) -> Framework | None:
    """The framework that owns the loop, found by the tracked callback."""
    modules = {kind.__module__ for value in tracked.values() for kind in type(value).__mro__}
    return next((found for found in Framework if f"headrace_torch.{found.value}" in modules), None)


def _held_by_savers(tracked: dict[str, Any]) -> set[int]:
    """The ids of library objects, such as a trainer, that a tracked object with `save_files` holds.

    It saves them in its own way, and their counters may differ before and after a save. So anything that they
    hold besides modules, optimizers, schedules and generators is not compared. The curves are compared all the
    same.
    """
    savers = [target for target in tracked.values() if hasattr(target, "save_files")]
    return {
        id(held) for saver in savers for held in vars(saver).values() if not discover.is_transparent(held)
    }


class _Finds:
    """The objects found, each once, and the names they are known by."""

    def __init__(self, tracked: dict[str, Any], shared: frozenset[str]) -> None:
        self._shared = shared
        self.classes = Classes.imported()
        self._tracked = tracked
        self._found: dict[int, tuple[Any, str]] = {}
        self._global = discover.global_generators()
        self._tracked_names = {id(value): name for name, value in tracked.items()}
        for value in tracked.values():
            self.add(value, "")

    @cached_property
    def _saved_tensors(self) -> set[int]:
        modules = (value for value in self._tracked.values() if self._is(value, "module"))
        return {id(tensor) for module in modules for _, tensor in _tensors(module)}

    def add(self, value: Any, path: str) -> None:
        if id(value) in self._global or not self._matters(value):
            return
        _, known = self._found.get(id(value), (None, ""))
        self._found[id(value)] = (value, known or path)

    def settings(self) -> dict[str, str]:
        """The state of modules and optimizers outside their state_dict()."""
        return settings_of(self._named("module"), self._named("optimizer"))

    def at_a_glance(self) -> Iterator[tuple[str, Hashable]]:
        """State that no variable holds as a plain value and that can be read at each step."""
        yield from self.settings().items()
        for path, module in self._named("module").items():
            for name, part in module.named_modules():
                if not discover.is_of_script(part):  # otherwise its attributes are variables
                    yield f"attributes of {path}.{name}", tuple(plain_attributes(part))
        for value, path in self._roots:
            if self._name(value):  # saved
                continue
            if self._is(value, "optimizer"):
                groups = [
                    {key: group[key] for key in group if key != "params"} for group in value.param_groups
                ]
                yield f"settings of {path}", digest(groups)
            elif self._is(value, "generator"):
                yield f"state of {path}", digest(_generator_state(value))
            elif any(self._is(value, kind) for kind in ("schedule", "scaler", "sampler")):
                yield f"state of {path}", digest(_state(value))

    def _named(self, kind: str) -> dict[str, Any]:
        """The objects of a kind that no other object holds, by variable or by name in `t.track(...)`."""
        found = {path or self._name(value): value for value, path in self._roots if self._is(value, kind)}
        found.pop("", None)
        return found

    @cached_property
    def _roots(self) -> list[tuple[Any, str]]:
        """The objects that are not part of another. To be read only when all are added."""
        parts = {id(part) for value, _ in self._found.values() for part in self._parts(value)}
        return [
            (value, path)
            for value, path in self._found.values()
            if id(value) not in parts or self._name(value)
        ]

    def pieces(self) -> Iterator[Piece]:
        roots = self._roots
        nameless: dict[str, int] = {}
        for value, path in roots:
            label = type(value).__name__
            if not (path or self._name(value)):
                nameless[label] = nameless.get(label, 0) + 1
        counted: dict[str, int] = {}
        for value, path in roots:
            label, name = type(value).__name__, self._name(value)
            if name:
                key = f"tracked {name}"
            elif path:
                key = f"variable {path}"
            else:
                counted[label] = counted.get(label, 0) + 1
                key = f"{label} {counted[label]} of {nameless[label]}"
            yield from self._describe(value, key, label, path, name)

    def _name(self, value: Any) -> str:
        return self._tracked_names.get(id(value), "")

    def _is(self, value: Any, what: str) -> bool:
        return issubclass(type(value), getattr(self.classes, what))

    def _matters(self, value: Any) -> bool:
        kinds = ("module", "optimizer", "schedule", "scaler", "sampler", "generator")
        return (
            id(value) in self._tracked_names
            or any(self._is(value, kind) for kind in kinds)
            or _has_state(value)
        )

    def _parts(self, value: Any) -> list[Any]:
        """The parts of `value`, which are reported together with it."""
        if self._is(value, "module"):
            return list(value.modules())[1:]
        if self._is(value, "schedule"):
            return list(getattr(value, "_schedulers", ()))
        return []

    def _describe(self, value: Any, key: str, label: str, path: str, name: str) -> Iterator[Piece]:
        def piece(kind: Kind, parts: dict[str, str], saved_as: str = name, side: str = "") -> Piece:
            return Piece(
                key=key + side,
                kind=kind,
                label=label,
                variable="" if path == label else path,
                saved_as=saved_as,
                shared=saved_as in self._shared,
                parts=parts,
            )

        if self._is(value, "module"):
            tensors = list(_tensors(value))
            covered = name or (
                "(parts)" if tensors and all(id(x) in self._saved_tensors for _, x in tensors) else ""
            )
            if tensors:
                yield piece(Kind.WEIGHTS, {part: digest(tensor) for part, tensor in tensors}, covered)
        elif self._is(value, "optimizer"):
            state = value.state_dict()
            yield piece(Kind.MOMENTS, _moments(state["state"]), side=" moments")
            groups = state["param_groups"]
            settings = {
                (setting if len(groups) == 1 else f"{setting} of group {number}"): digest(group[setting])
                for number, group in enumerate(groups)
                for setting in group
                if setting != "params"
            }
            yield piece(Kind.SETTINGS, settings, side=" settings")
        elif self._is(value, "generator"):
            yield piece(Kind.RNG, {"state": digest(_generator_state(value))})
        else:
            kind = Kind.VALUE
            if self._is(value, "schedule"):
                kind = Kind.SCHEDULE
            elif self._is(value, "scaler"):
                kind = Kind.SCALER
            elif self._is(value, "sampler") or {"epoch", "position"} <= _state(value).keys():
                kind = Kind.DATA
            yield piece(kind, {part: digest(item) for part, item in _state(value).items()})


def _global_pieces(t: Trial) -> Iterator[Piece]:
    labels = {
        "python": "Python's `random`",
        "numpy": "NumPy's `numpy.random`",
        "torch": "PyTorch's generator",
        "cuda": "CUDA",
    }
    for name, state in rng.capture().items():
        yield Piece(
            key=f"global {name}",
            kind=Kind.RNG,
            label=labels[name],
            saved_as=GLOBAL,
            parts={"state": digest(state)},
        )
    yield Piece(key="step", kind=Kind.STEP, label="t.step", saved_as=GLOBAL, parts={"step": str(t.step)})
    if t.state:
        values = {name: digest(value) for name, value in t.state.items()}
        yield Piece(key="t.state", kind=Kind.VALUE, label="t.state", saved_as=GLOBAL, parts=values)


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _moments(state: dict[Any, dict[str, Any]]) -> dict[str, str]:
    """One digest for each moment, over all parameters."""
    names = sorted({name for moments in state.values() for name in moments})
    return {name: digest({i: moments.get(name) for i, moments in state.items()}) for name in names}


def _has_state(value: Any) -> bool:
    return all(callable(getattr(type(value), method, None)) for method in ("state_dict", "load_state_dict"))


def _state(value: Any) -> dict[str, Any]:
    try:
        state = value.state_dict() if _has_state(value) else {}
    except AttributeError:  # a wrapper around an object without one, such as a loader of Accelerate
        return {}
    return state if isinstance(state, dict) else {"state": state}


def _generator_state(value: Any) -> Any:
    if hasattr(value, "getstate"):
        return value.getstate()
    if hasattr(value, "bit_generator"):
        return value.bit_generator.state
    return value.get_state()


def _is_iterator(value: Any) -> bool:
    """Whether a value may lose its position: a file that is only written has none, and `t.steps()` is restored."""
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable()
    if isinstance(value, GeneratorType) and value.gi_code.co_filename.startswith(_HEADRACE):
        return False
    return hasattr(type(value), "__next__") and hasattr(type(value), "__iter__")
