"""What a member has remembered since it started, for its state: the difference of two readings (`reach.State`), by
name.

    Names       names for places, the same in every process that runs the program
    taken       what differs from the start, in plain values; and what no state can hold
    put         applies what was taken to a starting content

A place's name is its kind and its path, `attributes loss(Annealed)` or `items loss(Annealed).betas`. A second
place with the same path gets a number, in the order of reading. The globals that several functions name are one
place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace_torch.hydro.fuse.lanes import is_stacked
from headrace_torch.hydro.fuse.named import Named
from headrace_torch.hydro.fuse.places import (
    ABSENT,
    Change,
    Draws,
    Elements,
    Items,
    Key,
    Numbers,
    Place,
    equal,
    kind_of,
)
from headrace_torch.hydro.fuse.reach import State
from headrace_torch.hydro.fuse.values import NotPlainError, Writer, read

Remembered = dict[str, Any]
"""Plain values by the places' names."""
_OBJECTS = ("items", "set", "tensor", "generator", "dict", "attributes", "slots")
_HERE = ("kind", "here")  # of a value that the starting content has at the same place


@dataclass(slots=True)
class Names:
    """Names of places: assigned once, and kept for good."""

    _of: dict[Key, str] = field(default_factory=dict)
    _places: dict[str, list[Place]] = field(default_factory=dict)

    def add(self, state: State) -> None:
        """Names the places that have no name yet."""
        for key, (place, _) in state.items():
            if key in self._of:
                continue
            kind = key[0]
            shared = kind.startswith("names in ")
            name = kind if shared else f"{kind} {self._variable(place)}{place.path}"
            if not shared and name in self._places:
                number = 2
                while f"{name} ({number})" in self._places:
                    number += 1
                name = f"{name} ({number})"
            self._of[key] = name
            self._places.setdefault(name, []).append(place)

    def keep(self, state: State) -> None:
        """Forgets the places that a state does not have."""
        self._of = {key: name for key, name in self._of.items() if key in state}
        living = {name: [one for one in places if one.key in state] for name, places in self._places.items()}
        self._places = {name: places for name, places in living.items() if places}

    def of(self, key: Key) -> str | None:
        """The name of a place, if it has one."""
        return self._of.get(key)

    def places(self, name: str) -> list[Place]:
        """The places of a name."""
        return self._places.get(name, [])

    def objects(self) -> dict[int, str]:
        """The names of objects, by identity."""
        return {key[1]: name for key, name in self._of.items() if key[0] in _OBJECTS}

    def object(self, name: str) -> Any:
        """The object of a name; KeyError if there is none."""
        return self._places[name][0].target  # type: ignore[attr-defined]  # those in _OBJECTS have one

    @staticmethod
    def _variable(place: Place) -> str:
        return ", ".join(place.read()) if isinstance(place, Named) and place.kind == "cell" else ""


def taken(began: State, now: State, names: Names) -> tuple[Remembered, list[Change]]:
    """What differs between the starting content and the current one, which is in place; and changes that no state
    can hold."""
    writer = Writer(names.objects())
    found: Remembered = {}
    lost: list[Change] = []
    written: dict[str, set[Any]] = {}
    for key, (place, before) in began.items():
        name = names.of(key)
        after = now[key][1] if key in now else before
        if name is None or after is before:
            continue
        match place:
            case Named():
                entry = found.setdefault(name, {"names": [], "gone": []})
                done = written.setdefault(name, set())  # through another function that names this global
                for one, value in _written(place, before, after, writer, lost, done):
                    if value is ABSENT:
                        entry["gone"].append(writer.write(one))
                    else:
                        entry["names"].append([writer.write(one), value])
            case Items():
                entry = _items(place, before, after, writer)
                if entry is None:
                    lost.append(place.change(before, after))
                else:
                    found[name] = {"items": entry}
            case Elements():
                try:
                    found[name] = {"items": [writer.write(one) for one in after]}
                except NotPlainError:
                    lost.append(place.change(before, after))
            case Numbers() | Draws():
                found[name] = {"value": Writer({}).write(after)}
            case _:
                lost.append(place.change(before, after))
    return {name: entry for name, entry in found.items() if any(map(_says, entry.values()))}, lost


def put(began: State, names: Names, remembered: Mapping[str, Any], device: torch.device) -> Remembered:
    """Applies what was taken to the starting content, which is in place; returns what has no place here."""
    rest: Remembered = {}
    for name, entry in remembered.items():
        places = [one for one in names.places(name) if one.key in began]
        try:
            for place in places:
                _put(place, began[place.key][1], entry, names, device)
        except KeyError:  # it refers to something that this program does not have
            places = []
        if not places:
            rest[name] = entry
    return rest


def _written(
    place: Named,
    before: Mapping[Any, Any],
    after: Mapping[Any, Any],
    writer: Writer,
    lost: list[Change],
    done: set[Any],
) -> Iterator[tuple[Any, Any]]:
    ordered = place.kind == "dict"  # whose order matters
    for name, value in after.items():
        if name in done:
            continue
        done.add(name)
        old = before.get(name, ABSENT)
        if equal(old, value):
            if ordered and _plain_name(name, writer):
                yield name, dict([_HERE])
            continue
        try:
            writer.write(name)
            yield name, value if value is ABSENT else writer.write(value)
        except NotPlainError:
            if not is_stacked(value):  # what a fused pass has kept of its layers means nothing after it
                lost.append(Change(place.of(name), kind_of(old, value)))
    for name in before.keys() - after.keys():
        if _plain_name(name, writer):
            yield name, ABSENT


def _plain_name(name: Any, writer: Writer) -> bool:
    try:
        writer.write(name)
    except NotPlainError:
        return False
    return True


def _items(_: Items, before: Any, after: Any, writer: Writer) -> list[Any] | None:
    known = {id(one): number for number, one in enumerate(before)}
    found: list[Any] = []
    for one in after:
        try:
            found.append(writer.write(one))
        except NotPlainError:
            if id(one) not in known:
                return None
            found.append({"kind": "here", "items": known[id(one)]})
    return found


def _says(value: Any) -> bool:
    return not isinstance(value, list) or bool(value)


def _put(place: Place, before: Any, entry: Mapping[str, Any], names: Names, device: torch.device) -> None:
    def plain(value: Any) -> Any:
        return read(value, names.object, device)

    match place:
        case Named():
            content = place.latest(ABSENT)  # with what an extra state has set
            ordered = {}
            for one, value in entry["names"]:
                name = plain(one)
                if isinstance(value, Mapping) and value["kind"] == "here":
                    ordered[name] = content.pop(name, ABSENT)
                elif place.fixed and name not in content:
                    continue  # of another function that names globals of this module
                else:
                    content.pop(name, None) if place.kind == "dict" else None
                    ordered[name] = plain(value)
            for one in entry["gone"]:
                if place.fixed and (name := plain(one)) in content:
                    content[name] = ABSENT
                elif not place.fixed:
                    content.pop(plain(one), None)
            content |= {name: value for name, value in ordered.items() if value is not ABSENT}
            place.write(content)
        case Items():
            place.write(
                [
                    before[one["items"]] if isinstance(one, Mapping) and one["kind"] == "here" else plain(one)
                    for one in entry["items"]
                ]
            )
        case Elements():
            place.write({plain(one) for one in entry["items"]})
        case Numbers():
            place.write(plain(entry["value"]).to(place.target.device))
        case _:
            place.write(plain(entry["value"]))
