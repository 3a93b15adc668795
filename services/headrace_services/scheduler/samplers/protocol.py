"""What a sampler is: a function from the number of a proposal to a configuration."""

from typing import Protocol

Params = dict[str, bool | int | float | str]


class Sampler(Protocol):
    """How configurations are proposed. Nothing is remembered: the same number gives the same configuration."""

    @property
    def size(self) -> int | None:
        """How many proposals there are; None for as many as one likes."""
        ...

    def suggest(self, number: int) -> Params | None:
        """Proposal `number`, counted from 0: the active parameters in the order of the space; None: exhausted."""
        ...
