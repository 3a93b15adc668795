"""What members remember outside their tensors: each has its own, as if it ran alone in a process.

A loss that counts its calls, a list or a class's attribute is one object, and the calls of all members would reach
it. So each call runs on its member's own content of everything that it reaches (`reach.State`):

    begin    a step: what the user has changed since the last one is changed for every member
    turn     a call: the members' content is put in place; afterwards, what the call has left is theirs
    end      the first member's content is left in place, so the user sees one call a step
    undo     an error: everything is restored to before the step

A member that joins starts with the content that the first step started with, plus what the user has changed since.
A call of several members is a fused pass, which needs members with equal content: `Memory.cohorts`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse.carrying import Names, Remembered, put, taken
from headrace_torch.hydro.fuse.errors import FuseError
from headrace_torch.hydro.fuse.named import Named
from headrace_torch.hydro.fuse.places import ABSENT, Advances, Change, equal
from headrace_torch.hydro.fuse.reach import Owned, Roots, State, read, refresh

MOST_DEAD = 2  # at most this many times the reached places are kept


class Memory:
    """What members remember, by id."""

    def __init__(self, owned: Owned) -> None:
        """Nothing is remembered yet; owned tensors are never remembered."""
        self._owned = owned
        self._roots: Roots = ()
        self._fresh: State | None = None
        self._of: dict[int, State] = {}
        self._now: State = {}
        self._names = Names()
        self._before: State | None = None  # those of the running step
        self._pending: dict[int, State] = {}

    def begin(self, roots: Roots) -> None:
        """Starts a step.

        Args:
            roots: the step's code; its content at the first step is where every member starts.
        """
        self.undo()  # of a step that was aborted
        same = len(roots) == len(self._roots) and all(
            one is two for (_, one), (_, two) in zip(roots, self._roots, strict=True)
        )
        self._roots = roots
        self._notice(anew=not same)
        self._before = self._now
        self._pending = {}

    def _notice(self, *, anew: bool) -> None:
        """Reads what the user has changed since the last step."""
        left, roots = self._now, self._roots
        now = read(roots, left, self._owned) if anew else refresh(left, roots, self._owned)
        if self._fresh is None:
            self._fresh = now
            self._names.add(now)
        elif edited := [
            key for key, (_, content) in now.items() if key not in left or left[key][1] is not content
        ]:
            self._spread(edited, left, now)
            self._names.add(self._fresh)
            if len(self._fresh) > MOST_DEAD * len(now):
                self._prune()
        self._now = now

    def _prune(self) -> None:
        """Releases closures that the user creates again at each step, and everything that they hold."""
        assert self._fresh is not None
        states = {id(one): one for one in (self._fresh, *self._of.values())}
        living = {
            number: read(self._roots, one, self._owned, as_known=True) for number, one in states.items()
        }
        self._of = {number: living[id(one)] for number, one in self._of.items()}
        self._fresh = living[id(self._fresh)]
        self._names.keep(self._fresh)

    def bring(
        self, number: int, remembered: Mapping[str, Any], arrange: Callable[[], None], device: torch.device
    ) -> Remembered:
        """A member arrives with what it remembers, in a step that has started; returns what has no place here.

        Args:
            number: its id.
            remembered: from `take`.
            arrange: called first, with the content that a member starts with in place.
            device: of the group.
        """
        assert self._fresh is not None
        left = self._now
        try:
            self._put(self._state(number))
            arrange()
            rest = put(self._fresh, self._names, remembered, device)
            self._of[number] = self._now = refresh(self._now, self._roots, self._owned)
        finally:
            self._now = refresh(self._now, self._roots, self._owned)
            self._put(left, strict=False)
        return rest

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """A context between two steps: a member's content is in place."""
        if self._fresh is None:
            yield
            return
        self.undo()
        self._notice(anew=False)
        left = self._now
        self._put(self._state(number), strict=False)
        try:
            yield
        finally:
            self._now = refresh(self._now, self._roots, self._owned)
            self._put(left, strict=False)

    def remembered(self, number: int) -> tuple[Remembered, list[Change]]:
        """What a member remembers beyond its starting content, in plain values; and changes that no state can
        hold."""
        if self._fresh is None:
            return {}, []
        with self.of(number):
            return taken(self._fresh, self._now, self._names)

    def knows_loss(self, name: str) -> bool:
        """Whether this name belongs to a loss that has run here, or to no loss."""
        _, of_loss, called = name.partition(" loss(")
        return not of_loss or any(path == f"loss({called.partition(')')[0]})" for path, _ in self._roots)

    def cohorts(self, ids: Sequence[int]) -> list[list[int]]:
        """Groups positions of members that remember the same."""
        found: list[tuple[State, list[int]]] = []
        for position, number in enumerate(ids):
            own = self._state(number)
            same = next((one for one in found if _alike(one[0], own)), None)
            if same is None:
                found.append((own, [position]))
            else:
                self._of[number] = same[0]
                same[1].append(position)
        return [positions for _, positions in found]

    @contextmanager
    def turn(self, ids: Sequence[int]) -> Iterator[None]:
        """The context of one call, for members that remember the same.

        Raises:
            FuseError: an iterator advanced, and members need its previous position.
        """
        self._put(self._state(ids[0]))
        try:
            yield
        finally:
            self._now = refresh(self._now, self._roots, self._owned)
        self._pending |= dict.fromkeys(ids, self._now)

    def end(self, ids: Sequence[int]) -> None:
        """Ends a step of these members; the content of others is dropped."""
        self._of = {number: self._pending.get(number, self._state(number)) for number in ids}
        self._put(self._of[ids[0]])
        self._before = None

    def undo(self) -> None:
        """Restores everything to before the step, if one is running."""
        if self._before is None:
            return
        self._now = refresh(self._now, self._roots, self._owned)
        self._put(self._before, strict=False)
        self._before = None

    def forget(self) -> None:
        """Every member starts again."""
        self._of = {}

    def _state(self, number: int) -> State:
        assert self._fresh is not None
        return self._of.get(number, self._fresh)

    def _put(self, state: State, *, strict: bool = True) -> None:
        for key, (place, content) in state.items():
            there = self._now.get(key)
            if there is not None and there[1] is content:
                continue
            if strict and isinstance(place, Advances) and place.latest(content) is not content:
                raise FuseError(advanced(place.path))
            place.write(content)
        self._now = state

    def _spread(self, edited: Sequence[Any], left: State, now: State) -> None:
        """What the user has changed between two steps is changed for every member."""
        assert self._fresh is not None
        states = {id(one): one for one in (self._fresh, *self._of.values())}
        merged: dict[int, State] = {}
        for number, state in states.items():
            merged[number] = dict(state)
            for key in edited:
                place, content = now[key]
                if key in left and key in state and isinstance(place, Named):
                    content = _merged(state[key][1], left[key][1], content)
                merged[number][key] = place, content
        self._of = {number: merged[id(one)] for number, one in self._of.items()}
        self._fresh = merged[id(self._fresh)]
        self._now = now


def advanced(path: str) -> str:
    """What is wrong with an iterator."""
    return (
        f"a call advances {path}, an iterator, and members would have to start from its position: count with a number "
        "instead, such as self.calls += 1"
    )


def _merged(own: Mapping[Any, Any], left: Mapping[Any, Any], now: Mapping[Any, Any]) -> dict[Any, Any]:
    """A member's names and values with what differs between `left` and `now`."""
    out = {name: value for name, value in own.items() if name in now or name not in left}
    return out | {name: one for name, one in now.items() if not equal(left.get(name, ABSENT), one)}


def _alike(one: State, two: State) -> bool:
    """Whether two members remember the same: compared by value if each has its own objects."""
    if one is two:
        return True
    seen: set[tuple[int, int]] = set()
    return all(
        one[key][1] is two[key][1] or _same(one[key][1], two[key][1], seen) for key in one.keys() & two.keys()
    )


def _same(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    if equal(a, b) or (id(a), id(b)) in seen:
        return True
    if type(a) is not type(b):
        return False
    seen.add((id(a), id(b)))
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[name], b[name], seen) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_same(x, y, seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, set):
        return bool(a == b)
    if isinstance(a, nn.Module) or not hasattr(a, "__dict__"):
        return False
    return _same(dict(vars(a)), dict(vars(b)), seen)
