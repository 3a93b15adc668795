"""What of a folder is not shipped.

Some is never shipped: version control, virtual environments, caches. Of the rest `.headraceignore` decides, in the
syntax of `.gitignore`. Where the folder has none, the `.gitignore` files decide as they do for git: those of the
folder, of the folders below it, and of those above it up to the repository's root. Folders into which trackers write
are left out unless a pattern keeps them (`!/runs/`): they grow with each run, and would be other code each time.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from headrace.userfile import MIB, UserFile, UserFileError

OWN: Final = ".headraceignore"
_GITS: Final = ".gitignore"
ALWAYS: Final = frozenset(
    {".git", ".hg", ".svn", ".jj", "__pycache__", "node_modules", ".venv", ".mypy_cache", ".ruff_cache",
     ".pytest_cache", ".hypothesis", ".ipynb_checkpoints", ".tox", ".nox", ".import_linter_cache", ".DS_Store"}
)  # fmt: skip
"""The names of what is never shipped."""
_ENVIRONMENTS: Final = ("pyvenv.cfg", "conda-meta")
"""What only the root of a Python environment has."""
_OUTPUTS: Final = {
    "runs": ("events.out.tfevents.*", "*/events.out.tfevents.*", "*/*/events.out.tfevents.*"),
    "lightning_logs": ("version_*",),
    "wandb": ("run-*", "offline-run-*"),
    "mlruns": ("meta.yaml", "*/meta.yaml"),
    "outputs": ("*/*/.hydra",),
    "multirun": ("*/*/multirun.yaml",),
}
"""The folders of TensorBoard, Lightning, Weights & Biases, MLflow and Hydra, and what they write there."""
_FILE: Final = UserFile(largest_bytes=MIB, remedy="Correct it or remove it.")


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one file, which count from its folder."""

    # From the folder of the file to the one that is shipped, with a slash at its end; empty where it is the same.
    ahead: str
    # From the folder that is shipped to that of the file, with a slash at its end.
    below: str
    patterns: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """True: left out. False: kept in spite of what others say. None: nothing is said."""
        if not path.startswith(self.below):
            return None
        return self.patterns.check_file(self.ahead + path[len(self.below) :]).include


class Ignored:
    """Says of each entry of a folder whether it is left out; asked from the top down, for rules may lie on the way."""

    def __init__(self, folder: Path) -> None:
        """Raises `InvalidFieldError` for a file of patterns that cannot be read."""
        self._folder = folder
        self._own = (folder / OWN).is_file()
        own = _rules(folder / OWN, "", "") if self._own else None
        self._rules = [own] if own is not None else [*_above(folder)]

    def entered(self, path: str) -> None:
        """The walk goes into a folder, whose own patterns count from now on; empty for the first one."""
        below = f"{path}/" if path else ""
        if not self._own and (rules := _rules(self._folder / path / _GITS, "", below)) is not None:
            self._rules.append(rules)

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether an entry is left out, and with a folder all that is below it."""
        name = path.rpartition("/")[2]
        if name in ALWAYS or name.endswith((".pyc", ".pyo")):
            return True
        if is_folder and any(os.path.lexists(self._folder / path / mark) for mark in _ENVIRONMENTS):
            return True
        asked = f"{path}/" if is_folder else path
        for rules in reversed(self._rules):  # the innermost file has the last word
            if (verdict := rules.verdict(asked)) is not None:
                return verdict
        marks = _OUTPUTS.get(name, ()) if is_folder else ()
        return any(any((self._folder / path).glob(mark)) for mark in marks)


def _above(folder: Path) -> Iterator[_Rules]:
    """The files of the folders above, from the repository's root on; none where there is no repository."""
    above = list(folder.parents)
    roots = [number for number, parent in enumerate(above) if (parent / ".git").exists()]
    if (folder / ".git").exists() or not roots:
        return
    for parent in reversed(above[: roots[0] + 1]):
        ahead = f"{folder.relative_to(parent).as_posix()}/"
        rules = _rules(parent / _GITS, ahead, "")
        # Patterns that leave out the folder itself say nothing of what is in it.
        if rules is not None and not rules.patterns.check_file(ahead).include:
            yield rules


def _rules(file: Path, ahead: str, below: str) -> _Rules | None:
    if not file.is_file():
        return None
    text = _FILE.text(file)
    try:
        return _Rules(ahead, below, GitIgnoreSpec.from_lines(text.splitlines()))
    except ValueError as error:
        raise UserFileError(file, None, f"has a pattern that cannot be read: {error}", _FILE.remedy) from None
