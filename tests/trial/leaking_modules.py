"""Programs whose trials change their process, and what notices or undoes it.

Each is a module with a function `train(t)`, which does not use the trial. They are in the files of `leaking/`, each
after a line `### name | words | libraries`. The words are those of the reason for which the process ends. For a
setting they are an expression that has the same value before and after a trial.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_FOLDER = Path(__file__).parent / "leaking"
BESIDE = {
    "leaking_data": "ROWS = []\n",
    "leaking_late": "ROWS = []\n",
    "leaking_plugin": "import leaking\nleaking.MODELS['net'] = 1\n",
}
"""Modules that some of them import, to be written beside the module itself, which is `leaking`."""


class Finder(Enum):
    """What takes care of a change."""

    # The process ends, because the state of the user's own modules has changed.
    STATE = "states"
    # The process continues, with the setting restored.
    SETTING = "settings"
    # The process ends, because of something that the trial left behind, or that cannot be restored.
    LEFTOVER = "leftovers"
    # The process ends with the trial itself.
    DEATH = "deaths"
    # Only `headrace check --reuse` finds it: the next trial meets it.
    CHECK = "unseen"
    # There is nothing to find: the process runs another trial.
    NOTHING = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaking:
    """A program."""

    name: str
    source: str
    finder: Finder
    # Of the reason, or of the expression.
    words: str = ""
    # The libraries that are imported before it.
    libraries: tuple[str, ...] = ()


def programs(finder: Finder) -> list[Leaking]:
    """The programs of one kind."""
    found = []
    for part in (_FOLDER / f"{finder.value}.txt").read_text().split("### ")[1:]:
        head, source = part.split("\n", 1)
        name, words, libraries = ([one.strip() for one in head.split("|")] + ["", ""])[:3]
        found.append(
            Leaking(name=name, source=source, finder=finder, words=words, libraries=tuple(libraries.split()))
        )
    return found
