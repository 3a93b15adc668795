"""The difference between two fingerprints of a variable, in a sentence. Pure functions."""

import marshal
from collections.abc import Callable
from typing import Any

from headrace.trial.reuse.fingerprint import Node, path
from headrace.trial.reuse.tokens import LONG

_LOCAL = "set it when the module is imported, or keep it local to the function"
_FILL = "fill it when the module is imported, or keep it local to the function"
_CREATE = "create it inside the function"
_CALL = "call the function when the module is imported, or clear its cache before the trial ends"
_TOLD = (bool, int, float, type(None))


def difference(name: str, before: list[Node] | None, after: list[Node] | None) -> str:
    """What happened to a variable, and the remedy. One of the fingerprints may be missing."""
    if before is None:
        return f"{name} is new: {_LOCAL}"
    if after is None:
        return f"{name} was deleted: leave it in the module, or keep it local to the function"
    place = next(
        (place for place, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), None
    )
    if place is None:
        longer, verb = (after, "is new") if len(after) > len(before) else (before, "was deleted")
        return f"{name}{path(longer, min(len(before), len(after)))} {verb}: {_LOCAL}"
    (parent, key, old), (other, other_key, new) = before[place], after[place]
    if (parent, key) != (other, other_key):
        return f"{name}{path(before, parent)} changed: {_LOCAL}"
    owner = name + path(after, place)
    if _is_named(old) and _is_named(new) and (members := _new_or_gone(before, after, place)):
        return f"{owner}{members}: {_LOCAL}"
    return _sentence(owner, old, new)


def _sentence(owner: str, old: Any, new: Any) -> str:
    kind = old[0] if isinstance(old, tuple) and isinstance(new, tuple) and old[:1] == new[:1] else ""
    root = owner.partition("._modules")[0].partition("._parameters")[0]
    if kind == "tensor" and root != owner:
        return f"{root}: its parameters changed: {_CREATE}"
    told = _HAPPENED.get(kind)
    if told is not None:
        return told(owner, old, new)
    was, now = _told(old), _told(new)
    if was and now:
        return f"{owner} was {was} and is now {now}: {_LOCAL}"
    return f"{owner} was replaced: {_LOCAL}" if kind != "object" else f"{owner} changed: {_LOCAL}"


def _items(owner: str, old: Any, new: Any) -> str:
    if old[1] != new[1]:
        return f"{owner} was a {old[1]} and is now a {new[1]}: {_LOCAL}"
    if old[2] == new[2]:
        return f"the contents of {owner} changed: {_LOCAL}"
    grew = "grew" if new[2] > old[2] else "shrank"
    return f"{owner} {grew} from {old[2]} to {_counted(new[2], 'entry', 'entries')}: {_FILL}"


def _cache(owner: str, old: Any, new: Any) -> str:
    if old[1] == new[1]:
        return f"the cache of {owner} changed: {_CALL}"
    return f"the cache of {owner} grew from {old[1]} to {_counted(new[1], 'result', 'results')}: {_CALL}"


_HAPPENED: dict[str, Callable[[str, Any, Any], str]] = {
    "items": _items,
    "cache": _cache,
    "tensor": lambda owner, *_: f"the values of {owner} changed: {_CREATE}, or work on a copy",
    "array": lambda owner, *_: f"the values of {owner} changed: {_CREATE}, or work on a copy",
    "iterator": lambda owner, *_: f"{owner} advanced: {_CREATE}",
    "generator": lambda owner, *_: f"random numbers were drawn from {owner}: {_CREATE}, or seed it there",
    "file": lambda owner, *_: (
        f"the file {owner} was read, written, opened or closed: open it inside the function"
    ),
    "lock": lambda owner, *_: f"the lock {owner} was acquired or released: release it in a `with` statement",
    "reference": lambda owner, *_: f"the object that {owner} refers to is gone: {_CREATE}",
    "function": lambda owner, *_: f"{owner} was replaced by another function: {_LOCAL}",
    "variable": lambda owner, *_: (
        f"the context variable {owner} was set: reset it before the function returns"
    ),
}


def _is_named(token: Any) -> bool:
    """Whether an object's parts are named: a class, a function or an object with attributes."""
    return isinstance(token, tuple) and token[0] in ("object", "class", "function")


def _new_or_gone(before: list[Node], after: list[Node], place: int) -> str:
    old = {key for parent, key, _ in before if parent == place}
    new = {key for parent, key, _ in after if parent == place}
    for key in sorted(map(str, new - old)):
        return f"{key} is new"
    for key in sorted(map(str, old - new)):
        return f"{key} was deleted"
    return ""


def _told(token: Any) -> str:
    """A number, or the class of an object. A text is not shown: it may be a secret."""
    if isinstance(token, bytes):
        value = None if token.startswith(LONG) else marshal.loads(token)  # noqa: S302 - our own
        if token.startswith(LONG) or not isinstance(value, _TOLD):
            return ""
        return repr(value)
    if isinstance(token, tuple) and token[0] in ("object", "items"):
        article = "an" if token[1][:1].lower() in "aeiou" else "a"
        return f"{article} {token[1]}"
    return {"tensor": "a tensor", "array": "an array", "function": "a function"}.get(token[0], "")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
