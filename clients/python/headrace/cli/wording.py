"""How values read: numbers, parameters, durations, states. Pure text in, pure text out.

States and reasons are told by a word and a symbol first and by colour second; the colours are distinguishable for
colour-blind readers (blue, orange, grey, and magenta for failure) and never the only sign.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from rich.text import Text

from headrace.client.model import StudyState, Value

STYLES = {
    "running": "cyan",
    "resumed": "cyan",
    "pending": "dim",
    "paused": "yellow",
    "completed": "bold blue",
    "stopped_early": "dim",
    "stopped": "yellow",
    "failed": "bold magenta",
    "cancelled": "dim magenta",
    "active": "cyan",
}
SYMBOLS = {
    "running": "▶",
    "resumed": "▷",
    "pending": "·",
    "paused": "‖",
    "completed": "✓",
    "stopped_early": "⊣",
    "stopped": "■",
    "failed": "✗",
    "cancelled": "■",
    "active": "▶",
}


def number(value: float | None, digits: int = 5) -> str:
    """A figure with five significant digits; `-` for none."""
    if value is None:
        return "-"
    if isinstance(value, int) or not math.isfinite(value):
        return str(value)
    return f"{value:.{digits}g}"


def scalar(value: Value | None) -> str:
    """A parameter's value: short, and a string without quotes."""
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case float():
            return number(value)
        case _:
            return str(value)


def params(values: Mapping[str, Value]) -> str:
    """`lr=0.001 width=64`."""
    return " ".join(f"{name}={scalar(value)}" for name, value in values.items())


def state(word: str) -> Text:
    """A state or a reason, with its symbol and colour."""
    return Text(f"{SYMBOLS.get(word, '?')} {word}", style=STYLES.get(word, ""))


def duration(seconds: float | None) -> str:
    """`42 s`, `3 min 05 s`, `2 h 10 min`, `3 d 04 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24:02d} h"


def ago(time: datetime | None, now: datetime | None = None) -> str:
    """`12 s ago`."""
    if time is None:
        return "-"
    return f"{duration(max(0.0, ((now or datetime.now(UTC)) - time).total_seconds()))} ago"


def size(value: int) -> str:
    """Bytes in GiB, MiB or KiB."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value} B"


def percent(part: float, whole: float) -> str:
    """`61 %`; `-` of nothing."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def plural(count: int, word: str, many: str | None = None) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count} {word if count == 1 else many or word + 's'}"


def ended_word(study_state: StudyState) -> str:
    """How a study's end is told."""
    return {
        StudyState.COMPLETED: "completed",
        StudyState.STOPPED: "was stopped",
        StudyState.FAILED: "failed",
    }.get(study_state, study_state.value)
