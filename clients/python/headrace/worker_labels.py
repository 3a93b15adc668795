"""Labels of workers that Headrace sets itself. Studies can require them like any other label."""

from typing import Final

OWN: Final = "headrace/"
"""How the names of these labels begin; users' labels must not."""
EPHEMERAL: Final = "headrace/ephemeral"
"""Marks a worker that never returns: its row is deleted minutes after it was last seen, instead of days."""
YES: Final = "yes"
