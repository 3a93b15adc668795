"""Which entries of a folder are not shipped.

Some entries are never shipped: version control, virtual environments, caches. For the others, `.headraceignore`
decides, in the syntax of `.gitignore`. If the folder has none, the `.gitignore` files decide as they do for git:
those of the folder, of the folders below it, and of those above it up to the repository's root. Folders into
which trackers write are left out unless a pattern keeps them (`!/runs/`): they grow with each run, and would
make different code each time.
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
"""The names of entries that are never shipped."""
_ENVIRONMENTS: Final = ("pyvenv.cfg", "conda-meta")
"""Names that exist only in the root of a Python environment."""
_OUTPUTS: Final = {
    "runs": ("events.out.tfevents.*", "*/events.out.tfevents.*", "*/*/events.out.tfevents.*"),
    "lightning_logs": ("version_*",),
    "wandb": ("run-*", "offline-run-*"),
    "mlruns": ("meta.yaml", "*/meta.yaml"),
    "outputs": ("*/*/.hydra",),
    "multirun": ("*/*/multirun.yaml",),
}
"""The folders of TensorBoard, Lightning, Weights & Biases, MLflow and Hydra, and the files that they write
there.
"""
_FILE: Final = UserFile(largest_bytes=MIB, remedy="Correct it or remove it.")


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one file, which are relative to its folder."""

    # The path from the file's folder to the shipped one, ending in a slash; empty if they are the same.
    ahead: str
    # The path from the shipped folder to the file's folder, ending in a slash.
    below: str
    patterns: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """True: left out. False: kept, overriding outer rules. None: no rule applies."""
        if not path.startswith(self.below):
            return None
        return self.patterns.check_file(self.ahead + path[len(self.below) :]).include


class Ignored:
    """Decides for each entry of a folder whether it is left out. Call it from the top down, as subfolders may
    add rules.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `InvalidFieldError` for a file of patterns that cannot be read."""
        self._folder = folder
        self._own = (folder / OWN).is_file()
        own = _rules(folder / OWN, "", "") if self._own else None
        self._rules = [own] if own is not None else [*_above(folder)]

    def entered(self, path: str) -> None:
        """Note that the walk enters a folder, whose own patterns apply from now on; `path` is empty for the
        root.
        """
        below = f"{path}/" if path else ""
        if not self._own and (rules := _rules(self._folder / path / _GITS, "", below)) is not None:
            self._rules.append(rules)

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Whether an entry is left out, and with a folder everything below it."""
        name = path.rpartition("/")[2]
        if name in ALWAYS or name.endswith((".pyc", ".pyo")):
            return True
        if is_folder and any(os.path.lexists(self._folder / path / mark) for mark in _ENVIRONMENTS):
            return True
        asked = f"{path}/" if is_folder else path
        for rules in reversed(self._rules):  # the innermost file decides
            if (verdict := rules.verdict(asked)) is not None:
                return verdict
        marks = _OUTPUTS.get(name, ()) if is_folder else ()
        return any(any((self._folder / path).glob(mark)) for mark in marks)


def _above(folder: Path) -> Iterator[_Rules]:
    """The rules of the folders above, starting at the repository's root; none without a repository."""
    above = list(folder.parents)
    roots = [number for number, parent in enumerate(above) if (parent / ".git").exists()]
    if (folder / ".git").exists() or not roots:
        return
    for parent in reversed(above[: roots[0] + 1]):
        ahead = f"{folder.relative_to(parent).as_posix()}/"
        rules = _rules(parent / _GITS, ahead, "")
        # Patterns that leave out the folder itself do not apply to its contents.
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
