"""How states are shown on a terminal.

States and reasons are shown by a word and a symbol first and by colour second. The colours are distinguishable for
colour-blind readers (blue, orange, grey, and magenta for failure) and are never the only sign.
"""

from rich.text import Text

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
    "infeasible": "dim yellow",
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
    "infeasible": "∅",
    "active": "▶",
}


def state(word: str) -> Text:
    """A state or a reason, with its symbol and colour."""
    return Text(f"{SYMBOLS.get(word, '?')} {word}", style=STYLES.get(word, ""))
