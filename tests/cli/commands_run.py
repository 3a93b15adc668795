"""A command run in the process of its test."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """The outcome of a command."""

    code: int
    out: str
    err: str


Invoke = Callable[..., Result]
