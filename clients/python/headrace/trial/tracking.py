"""What can be tracked, and how its state is saved and restored.

Four protocols for state are in use; an object is tracked by the first one that it has. An object whose state is
sharded over the ranks of a gang saves itself, into a folder that all ranks share: an object with `save_files`
and `load_files`, or a DeepSpeed engine with its `save_checkpoint` and `load_checkpoint`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TAG = "saved"
"""The only tag in an engine's folder."""


class Unchanged(Exception):  # noqa: N818  # not an error: `save_files` raises it
    """An object that saves itself only at certain points has not changed since it was saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """One tracked object, with the two functions that a checkpoint needs."""

    name: str
    target: Any
    get_state: Callable[[], Any]
    set_state: Callable[[Any], Any]
    # The user says that it is the same on all ranks: rank 0's is saved, and restored on all.
    shared: bool = False
    # Loads the states of all ranks of a gang of a different size; None if the object does not support that.
    set_rank_states: Callable[..., Any] | None = None
    # It draws random numbers: if ranks are added, it is not defined which ones they draw.
    draws: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedFiles:
    """One tracked object that saves itself, on all ranks together."""

    name: str
    target: Any
    save: Callable[[Path], Any]
    load: Callable[[Path], Any]
    # Whether it can load what a different number of ranks saved.
    resharded: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Shared:
    """An object that the user declares to be the same on all ranks; created by `shared`."""

    target: Any


def shared(target: Any) -> Shared:
    """Declares that an object in `t.track(...)` is the same on all ranks of a gang:
    `t.track(model=shared(model))`.

    Rank 0's state is saved, and restored on all ranks. Without it, ranks find out by comparing digests, which
    takes the time to read the state once. Batch norm's running averages also differ between the ranks of a
    data-parallel model.
    """
    return Shared(target)


def named_by_type(
    objects: Sequence[Any], named: Mapping[str, Any], *, known: Collection[str]
) -> dict[str, Any]:
    """All objects by name; those without a name by their type: `CosineAnnealingLR` is `cosine_annealing_lr`.

    Raises `ValueError` for a name that is already `known`, or occurs twice: the identity of objects must not
    depend on their order. Raises `TypeError` for a dictionary.
    """
    for name in named:
        if name in known:
            raise ValueError(f"t.track({name}=...) was called before; each object has a name of its own")
    found: dict[str, Any] = {}
    for target in objects:
        kind = type(target.target if isinstance(target, Shared) else target).__name__
        if isinstance(target, Mapping):
            raise TypeError(f"t.track(...) got a {kind}; give each object a name, as in t.track(**objects)")
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
        if name in known or name in named or name in found:
            raise ValueError(
                f"t.track(...) got more than one object of the type {kind}, or called {name!r}; "
                f"give each a name of its own, as in t.track({name}_1=..., {name}_2=...)"
            )
        found[name] = target
    return {**found, **named}


def tracked(name: str, target: Any) -> Tracked | TrackedFiles:
    """Raises `TypeError`, naming the argument, for an object without a state."""
    said = isinstance(target, Shared)
    if said:
        target = target.target
    if (files := _saving_itself(name, target)) is not None:
        if said:
            raise TypeError(
                f"t.track({name}=shared(...)) got a {type(target).__name__}, which saves itself on all ranks together: "
                "leave shared(...) out"
            )
        return files
    for get, set_ in (
        ("state_dict", "load_state_dict"),
        ("get_state", "set_state"),
        ("getstate", "setstate"),
    ):
        if callable(getattr(target, get, None)) and callable(getattr(target, set_, None)):
            return Tracked(
                name=name,
                target=target,
                get_state=getattr(target, get),
                set_state=getattr(target, set_),
                shared=said,
                set_rank_states=getattr(target, "load_rank_states", None),
                draws=get != "state_dict",
            )
    bit_generator = getattr(target, "bit_generator", None)  # numpy.random.Generator
    if bit_generator is not None and hasattr(bit_generator, "state"):
        return Tracked(
            name=name,
            target=target,
            get_state=lambda: bit_generator.state,
            set_state=lambda state: setattr(bit_generator, "state", state),
            shared=said,
            draws=True,
        )
    plain = target is None or isinstance(target, bool | int | float | str | bytes | list | dict | tuple | set)
    kept = "the value" if plain else f"pickle.dumps({name}), created before each report,"
    raise TypeError(
        f"t.track({name}=...) got a {type(target).__name__}, which has no state_dict() and load_state_dict(); "
        f"keep {kept} in t.state[{name!r}] instead"
    )


def _saving_itself(name: str, target: Any) -> TrackedFiles | None:
    save, load = getattr(target, "save_files", None), getattr(target, "load_files", None)
    if callable(save) and callable(load):
        return TrackedFiles(
            name=name,
            target=target,
            save=save,
            load=load,
            resharded=bool(getattr(target, "resharded", False)),
        )
    if not any(kind.__module__.partition(".")[0] == "deepspeed" for kind in type(target).__mro__):
        return None
    save, load = getattr(target, "save_checkpoint", None), getattr(target, "load_checkpoint", None)
    if not (callable(save) and callable(load)):
        return None
    return TrackedFiles(
        name=name,
        target=target,
        save=lambda folder: save(str(folder), tag=_TAG, save_latest=False),
        load=lambda folder: _load_engine(name, load, folder),
    )


def _load_engine(name: str, load: Callable[..., Any], folder: Path) -> None:
    path, _ = load(str(folder), tag=_TAG)
    if path is None:  # it only warns
        raise ValueError(f"t.track({name}=...): DeepSpeed found no checkpoint of its own in {folder}")
