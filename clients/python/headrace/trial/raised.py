"""An exception that ended a program: how it is reported, and what it blames."""

import traceback
from collections.abc import Iterator
from pathlib import Path

from headrace.trial.checkpoint import UnreadableError
from headrace.trial.runtime import Infeasible

_OUT_OF_MEMORY = frozenset({"OutOfMemoryError", "MemoryError"})
_OF_THE_BUNDLE = [Path(__file__).with_name(name) for name in ("bundle.py", "bundle_values.py")]
_CPU_ALLOCATOR = ("DefaultCPUAllocator", "not enough memory")
"""PyTorch's message for it on a CPU, where it raises a plain `RuntimeError`."""


def words(error: BaseException) -> tuple[str, str]:
    """Its message line and its traceback."""
    lines = traceback.format_exception_only(error)
    line = lines[-1] if isinstance(error, SyntaxError) else lines[0]
    return line.strip(), "".join(traceback.format_exception(error))


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or on the machine. Uses names, because torch may not be
    installed.
    """
    for one in _chain(error):
        if not _OUT_OF_MEMORY.isdisjoint(kind.__name__ for kind in type(one).__mro__):
            return True
        if isinstance(one, RuntimeError) and any(text in str(one) for text in _CPU_ALLOCATOR):
            return True
    return False


def unreadable(error: BaseException) -> bool:
    """Whether the checkpoint to continue from could not be read."""
    return any(isinstance(one, UnreadableError) for one in _chain(error))


def infeasible(error: BaseException) -> str | None:
    """Why the configuration makes no sense, if the program says so; otherwise None."""
    return next(
        (one.reason.strip() or "no reason given" for one in _chain(error) if isinstance(one, Infeasible)),
        None,
    )


def blamed(error: BaseException) -> int | None:
    """The id of the one member that it names; None if it names none."""
    for one in _chain(error):
        member = getattr(one, "member", None)
        if isinstance(member, int) and not isinstance(member, bool):
            return member
    return None


def of_shapes(error: BaseException) -> bool:
    """Whether a group rejects a member for its settings, not for how it trains."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint({"StaticShapeError", "MemberError"})


def unfusable(error: BaseException) -> bool:
    """Whether a group rejects the model or the loss, so that each member would fail the same way."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return "FuseError" in names and names.isdisjoint({"MemberError", "PoolError"})


def of_use(error: BaseException) -> bool:
    """Whether the bundle itself rejects input from the program, such as a list of the wrong length, which is no
    member's fault.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return (
        isinstance(error, TypeError | ValueError)
        and bool(frames)
        and Path(frames[-1].filename) in _OF_THE_BUNDLE
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__
