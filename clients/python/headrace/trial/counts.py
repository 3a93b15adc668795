"""Whether a script's own loop continues after a restored step, judging by its counters."""

import sys
from collections.abc import Mapping
from numbers import Integral
from types import FrameType
from typing import Any

_OURS = "headrace"
_NEAREST = 3
"""How many of the calling functions of a report are inspected: the loop is in one of them."""


def counts_on(restored: int, state: Mapping[str, Any]) -> bool:
    """Whether an integer in the calling functions, or in the trial's state, is where such a loop would start.

    At the first report, a loop over `range(t.step, n)` has counted to the restored step, or to the one after it;
    a loop over `range(n)` has not.
    """
    begins = (restored, restored + 1)
    return _has(state, begins) or any(
        _has(frame.f_locals, begins) or _has(_of_object(frame), begins) for frame in _scripts_frames()
    )


def _has(values: Mapping[str, Any], begins: tuple[int, int]) -> bool:
    return any(_is_count(value) and value in begins for value in list(values.values()))


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _of_object(frame: FrameType) -> Mapping[str, Any]:
    """The attributes of the object whose method a function is, as some loops count there."""
    return getattr(frame.f_locals.get("self"), "__dict__", {})


def _scripts_frames() -> list[FrameType]:
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _NEAREST:
        if frame.f_globals.get("__name__", "").partition(".")[0] != _OURS:
            found.append(frame)
        frame = frame.f_back
    return found
