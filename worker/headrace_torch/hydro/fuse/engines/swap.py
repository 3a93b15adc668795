"""Puts members' tensors into a module for the duration of a forward pass."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class Sockets:
    """Where each of a module's parameters and buffers is plugged in; tied tensors have several places.

    `functional_call` finds these places again on every call, which costs more than a small model's forward pass.
    """

    def __init__(self, module: nn.Module) -> None:
        """Walks the module once."""
        self.module = module
        first: dict[int, str] = {}
        self._places: dict[str, list[tuple[dict[str, Any], str]]] = {}
        for prefix, child in module.named_modules():
            for held in (child._parameters, child._buffers):
                for key, value in held.items():
                    if value is None:
                        continue
                    name = first.setdefault(id(value), f"{prefix}.{key}" if prefix else key)
                    self._places.setdefault(name, []).append((held, key))

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Runs the block with these tensors in place; afterwards the module holds its previous ones."""
        before = [(held, key, held[key]) for name in tensors for held, key in self._places[name]]
        for name, value in tensors.items():
            for held, key in self._places[name]:
                held[key] = value
        try:
            yield
        finally:
            for held, key, value in before:
                held[key] = value

    def current(self, name: str) -> Tensor:
        """Returns what the module holds now: a buffer may have been reassigned."""
        held, key = self._places[name][0]
        value: Tensor = held[key]
        return value
