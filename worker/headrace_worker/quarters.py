"""Where trials of another user live. All trials of a worker run as the same user, so nothing separates the
projects in that user's own home and in `/tmp`. What one leaves there, such as a setting that names a program,
others would load.

    HOME
      homes/KEY/        root's: only processes with the project's group pass
        project         whose it is, for people
        home/           the trials': HOME of all trials of one project, and so its caches; kept
      tmp/KEY/          root's: only processes with the project's group pass
        t/              the trials': TMPDIR of one process; deleted with it

A project's group is one of those that no file elsewhere belongs to (`own_groups`), and only root gives it to a
process. If a user namespace lacks them, everybody may enter: then projects are separated by names alone.

After a daemon was killed, the next one ends its processes and then empties `tmp/`.
"""

import hashlib
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headrace_worker import own_groups
from headrace_worker.disk import clear_away
from headrace_worker.run_as import in_group, pass_through

UNUSED_S: Final = 30 * 24 * 3600.0
"""A project's home is deleted this long after its last trial."""
LONGEST_TMP: Final = 70
"""A longer TMPDIR leaves no room for the sockets that multiprocessing and torch make there: their paths have at
most 107 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarters:
    """The home and the temporary folder of one process."""

    owner: str
    """The owner, a project, whose trials share the home."""
    home: Path
    tmp: Path
    group: int | None
    """The group whose processes may enter; None: everybody may."""

    @property
    def variables(self) -> Mapping[str, str]:
        """What the process's environment says about it."""
        return {"HOME": str(self.home), "TMPDIR": str(self.tmp)}

    @property
    def defaults(self) -> Mapping[str, str]:
        """Further variables, unless someone else sets them: what PyTorch compiles would vanish with the temporary
        folder."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(self.home / ".cache" / "torchinductor")}

    def of_another_process(self) -> "Quarters":
        """The same home, and another temporary folder."""
        return replace(self, tmp=_new_tmp(self.tmp.parents[1]))

    def user(self, spelled: str) -> str:
        """A user who may enter, in the form that the shim takes."""
        return spelled if self.group is None else in_group(spelled, self.group)

    def make(self, spelled: str) -> None:
        """Makes what does not exist yet, for a user in the form that the shim takes."""
        for folder in (self.home, self.tmp):
            gate = folder.parent
            gate.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            os.chown(folder, *map(int, spelled.split(":")[:2]), follow_symlinks=False)
            if self.group is None:
                pass_through(gate)
            else:
                os.chown(gate, 0, self.group)
                gate.chmod(0o710)
            pass_through(gate.parent)
        (self.home.parent / "project").write_text(f"{self.owner}\n", encoding="utf-8")
        os.utime(self.home.parent)

    def clear(self) -> None:
        """Deletes what belongs to this process only. The home counts as used until now."""
        clear_away(self.tmp.parent)
        with suppress(OSError):
            os.utime(self.home.parent)


@dataclass(frozen=True, slots=True)
class Estate:
    """The homes and temporary folders in one worker's home."""

    homes: Path
    tmp: Path
    family: str
    """The prefix of its processes' names (`standby.family`), from which the groups are derived."""

    def quarters(self, owner: str, uid: int) -> Quarters:
        """The quarters of a new process of a user. Each user has another home: it could not write to this one's."""
        group = own_groups.of_project(self.family, owner) if own_groups.exist() else None
        key = hashlib.sha256(f"{owner}\0{uid}".encode()).hexdigest()[:16]
        return Quarters(owner=owner, home=self.homes / key / "home", tmp=_new_tmp(self.tmp), group=group)

    def too_long(self) -> str:
        """Why sockets cannot be made in a TMPDIR here, or nothing."""
        length = len(os.fsencode(_new_tmp(self.tmp)))
        if length <= LONGEST_TMP:
            return ""
        return (
            f"--home {self.tmp.parent} is so long that programs may fail to create sockets in their TMPDIR, which has "
            f"{length} bytes: give one that is {length - LONGEST_TMP} bytes shorter, or use --pass-env TMPDIR"
        )

    def clear_unused(self) -> None:
        """Deletes the homes that no trial has used for long. No trial may be running."""
        for gate in self.homes.iterdir() if self.homes.exists() else ():
            with suppress(OSError):  # an operator may be deleting there too
                if gate.stat().st_mtime < time.time() - UNUSED_S:
                    clear_away(gate)


def _new_tmp(above: Path) -> Path:
    return above / uuid.uuid4().hex[:12] / "t"
