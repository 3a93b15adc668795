"""What a step reaches in the user's program, and what it changes there: lists it fills, counters, generators.

The probe runs the user's code many times more than the user asked for. `untouched` puts everything back that the
code reaches (`reach`).
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from headrace_torch.hydro.fuse.places import Change
from headrace_torch.hydro.fuse.reach import Owned, Roots, read, shared
from headrace_torch.hydro.fuse.twin import hook_functions


def roots_of(loss_fn: Any, model: nn.Module) -> Roots:
    """Where a step's code begins."""
    return [*roots_of_loss(loss_fn), *roots_of_model(model)]


def roots_of_loss(loss_fn: Any) -> Roots:
    """Where the code of a loss begins."""
    return [("loss", getattr(loss_fn, "criterion", loss_fn))]


def roots_of_model(model: nn.Module) -> Roots:
    """Where the code of a model begins that its copies have in common."""
    return [*(("hook", one) for one in hook_functions(model)), *shared(model)]


@contextmanager
def untouched(roots: Roots = ()) -> Iterator[None]:
    """Runs the block; then puts back generators, and what the roots reach."""
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
    """A record of what roots reach, taken when it is made."""

    def __init__(self, roots: Roots) -> None:
        """Reads everything once."""
        self._state = read(roots, {}, Owned())

    def changes(self) -> list[Change]:
        """Names what is not as it was, what cannot be put back first, then what counts."""
        found = []
        for place, content in self._state.values():
            now = place.latest(content)
            if now is not content:
                found.append(place.change(content, now))
        return sorted(found, key=lambda one: -one.kind)

    def restore(self) -> None:
        """Puts everything back but iterators; may be called again."""
        for place, content in self._state.values():
            if place.latest(content) is not content:
                place.write(content)
