"""Where the processes of a check run: in the script's own folder, or each in a copy of the shipped files.

A worker unpacks shipped code for each attempt and deletes the copy at the end. A check does the same, with the
same archive: files that one process writes into its folder are gone for later ones. Each copy has a different
path, as on a worker.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headrace.check.snapshot import Control
from headrace.check.sound import CheckError
from headrace.code import read_folder, unpack, write_archive


@contextmanager
def in_its_folder(control: Control) -> Iterator[Control]:
    """The process runs where the script is."""
    yield control


class Copies:
    """Fresh copies of the files that are shipped from a folder."""

    def __init__(self, script: Path, folder: Path, scratch: Path) -> None:
        """Reads the folder now, so edits during the check have no effect. Raises `FolderError`, and `CheckError`
        if the script is not shipped.
        """
        if not script.is_relative_to(folder):
            raise CheckError(
                f"{script} lies outside {folder}, so it is not shipped",
                remedy="Move it into the folder, or name its folder in trial.working_dir.",
            )
        found = read_folder(folder)
        self._script = script.relative_to(folder)
        if self._script.as_posix() not in {entry.path for entry in found.manifest.entries}:
            raise CheckError(
                f"{self._script} is ignored, so it is not shipped",
                remedy="Ship it: correct .headraceignore, or .gitignore where there is none.",
            )
        self._digest = found.manifest.digest
        self._scratch = scratch
        self._archive = scratch / "code.tar"
        with self._archive.open("wb") as archive:
            write_archive(found, archive)
        self._made = 0

    @contextmanager
    def fresh(self, control: Control) -> Iterator[Control]:
        """The process runs in a copy, which is deleted afterwards."""
        self._made += 1
        copy = self._scratch / f"code-{self._made}"
        with self._archive.open("rb") as archive:
            unpack(archive, self._digest, copy)
        try:
            yield replace(control, script=str(copy / self._script), folder=str(copy))
        finally:
            shutil.rmtree(copy, ignore_errors=True)
