"""Files that a check's runs write into the script's own folder, where they persist.

All runs of a check share one `t.id`, which no trial and no other check has. So a file or a folder with this id
in its name belongs to the check. Each run starts without those of earlier runs, as each trial of a study does,
and all are deleted.
"""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from headrace.trial.shared_files import HIDDEN, MOST, times


def new_id() -> str:
    """A new `t.id` for a check."""
    return f"check-{secrets.randbelow(10**9):09}"


class OwnFolders:
    """The folders that the runs of a check may write to."""

    def __init__(self, places: set[Path], trial_id: str) -> None:
        self._places = places
        self._id = trial_id
        self._before = self._times()

    def clear(self) -> None:
        """Deletes files and folders with the check's id in their names. Searches about `MOST` entries at most."""
        for place in self._places:
            count = 0
            for folder, folders, names in os.walk(place):
                for name in [one for one in (*folders, *names) if self._id in one]:
                    _remove(Path(folder, name))
                folders[:] = [one for one in folders if not (self._id in one or one.startswith(HIDDEN))]
                count += len(folders) + len(names)
                if count > MOST:
                    break

    def changed(self) -> tuple[str, ...]:
        """The names of files written since the check started, except those that its own output goes to."""
        changed = {path for path, at in self._times().items() if self._before.get(path) != at}
        return tuple(sorted({path.name for path in changed if not _is_output(path)}))

    def _times(self) -> dict[Path, float]:
        return {place / name: at for place in self._places for name, at in times(place).items()}


def _is_output(path: Path) -> bool:
    """Whether this process prints into the file, as `headrace check … > check.log` does."""
    with suppress(OSError):
        return any(os.path.samestat(path.stat(), os.fstat(stream)) for stream in (1, 2))
    return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # for example, a folder with permissions of the script's own
            path.unlink()
