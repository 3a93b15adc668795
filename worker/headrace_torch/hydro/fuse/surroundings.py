"""What a step reaches in the user's program, and what it changes there: lists it fills, counters, generators.

The probe runs the user's code many more times than the user asked for. `untouched` restores everything that the
code reaches (`reach`).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from headrace_torch.hydro.fuse.places import Change
from headrace_torch.hydro.fuse.reach import Owned, Roots, read, shared
from headrace_torch.hydro.fuse.twin import hook_functions

MOST_LOSSES: Final = 8  # if there are more, they are created again at each step


def roots_of(loss_fn: Any, model: nn.Module) -> Roots:
    """Where a step's code starts."""
    return [*roots_of_loss(loss_fn), *roots_of_model(model)]


def roots_of_loss(loss_fn: Any) -> Roots:
    """Where the code of a loss starts."""
    return [("loss", getattr(loss_fn, "criterion", loss_fn))]


@dataclass(slots=True)
class Losses:
    """The losses of a group, which may alternate: what one remembers must survive another's step."""

    _ran: list[Any] = field(default_factory=list)

    def roots(self, loss_fn: Any) -> Roots:
        """Where the code of all losses starts. A new closure replaces an earlier one with the same code."""
        loss = getattr(loss_fn, "criterion", loss_fn)
        if not any(one is loss for one in self._ran):
            code = code_of(loss) if hasattr(loss, "__code__") else None
            same = [place for place, one in enumerate(self._ran) if code is not None and code_of(one) is code]
            for place in same:
                self._ran[place] = loss
            if not same:
                self._ran = [*self._ran[1 - MOST_LOSSES :], loss]
        return [(f"loss({_called(one)})", one) for one in self._ran]


def code_of(loss: Any) -> object:
    """Identifies a loss: by its code, or its class; a new closure of the same code is the same loss."""
    inner = _inner(loss)
    return getattr(inner, "__code__", type(inner))


def _called(loss: Any) -> str:
    inner = _inner(loss)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _inner(loss: Any) -> Any:
    loss = getattr(loss, "criterion", loss)
    while isinstance(loss, partial):
        loss = loss.func
    return loss


def roots_of_model(model: nn.Module) -> Roots:
    """Where the code of a model starts that its copies have in common."""
    return [*(("hook", one) for one in hook_functions(model)), *shared(model)]


@contextmanager
def untouched(roots: Roots = ()) -> Iterator[None]:
    """Runs the block; then restores generators, and what the roots reach."""
    surroundings = Surroundings(roots)
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        surroundings.restore()
        random.setstate(python)
        np.random.set_state(numpy)


def python_generators() -> tuple[Any, ...]:
    """The state of Python's and numpy's global generators, comparable."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(keys).tobytes(), tuple(rest)


class Surroundings:
    """A snapshot of what roots reach, taken when it is made."""

    def __init__(self, roots: Roots) -> None:
        """Reads everything once."""
        self._state = read(roots, {}, Owned())

    def changes(self) -> list[Change]:
        """Names what has changed: first what cannot be restored, then what counts."""
        found = []
        for place, content in self._state.values():
            now = place.latest(content)
            if now is not content:
                found.append(place.change(content, now))
        return sorted(found, key=lambda one: -one.kind)

    def restore(self) -> None:
        """Restores everything except iterators; may be called again."""
        for place, content in self._state.values():
            if place.latest(content) is not content:
                place.write(content)
