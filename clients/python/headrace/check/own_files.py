"""Files that a check's runs write into the script's own folder, where they stay.

All runs of a check have one `t.id`, which no trial and no other check has. So a file or a folder with it in its name is
the check's own: each run starts without those of the run before, as each trial of a study does, and none stay.
"""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from headrace.trial.shared_files import HIDDEN, MOST, times


def new_id() -> str:
    """What `t.id` is in a check."""
    return f"check-{secrets.randbelow(10**9):09}"


class OwnFolders:
    """The folders that the runs of a check may write to."""

    def __init__(self, places: set[Path], trial_id: str) -> None:
        self._places = places
        self._id = trial_id
        self._before = self._times()

    def clear(self) -> None:
        """Deletes what carries the check's id: at most so far as `MOST` entries go."""
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
        """The names of the files that were written since the check began, without those that its own output goes to."""
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
        with suppress(OSError):  # a folder that is the script's affair
            path.unlink()
