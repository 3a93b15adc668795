"""Where trials of another user live. All trials of a worker are the same user, so nothing keeps the projects apart in
that user's own home and in `/tmp`: what one leaves there, such as a setting that names a program, others would load.

    HOME
      homes/KEY/        root's: only processes with the project's group pass
        project         whose it is, for people
        home/           the trials': HOME of all trials of one project, and so its caches; kept
      tmp/KEY/          root's: only processes with the project's group pass
        t/              the trials': TMPDIR of one process; deleted with it

A group of a project is one of those that no file elsewhere belongs to (`own_groups`), and only root gives it to a
process. Where a user namespace lacks them, everybody passes: then projects are kept apart by names alone.

What is left of a daemon that was killed: the next one empties `tmp/`, after it has ended the processes.
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
"""So long after its last trial a project's home is deleted."""
LONGEST_TMP: Final = 70
"""A longer TMPDIR leaves no room for the sockets that multiprocessing and torch make there: 107 bytes are the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarters:
    """One process's."""

    owner: str
    """Whose trials share the home: a project's."""
    home: Path
    tmp: Path
    group: int | None
    """Whose processes alone pass; None: everybody."""

    @property
    def variables(self) -> Mapping[str, str]:
        """What the process's environment says of it."""
        return {"HOME": str(self.home), "TMPDIR": str(self.tmp)}

    @property
    def defaults(self) -> Mapping[str, str]:
        """And what else, where nobody says otherwise: what PyTorch compiles would go with the temporary folder."""
        return {"TORCHINDUCTOR_CACHE_DIR": str(self.home / ".cache" / "torchinductor")}

    def of_another_process(self) -> "Quarters":
        """The same home, and another temporary folder."""
        return replace(self, tmp=_new_tmp(self.tmp.parents[1]))

    def user(self, spelled: str) -> str:
        """A user, as the shim takes it, that may pass."""
        return spelled if self.group is None else in_group(spelled, self.group)

    def make(self, spelled: str) -> None:
        """Makes what is not there yet, for a user, as the shim takes it."""
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
        """Deletes what is the process's alone. The home was used until now."""
        clear_away(self.tmp.parent)
        with suppress(OSError):
            os.utime(self.home.parent)


@dataclass(frozen=True, slots=True)
class Estate:
    """All that lies in one worker's home."""

    homes: Path
    tmp: Path
    family: str
    """The name of its processes (`standby.family`), from which the groups are drawn."""

    def quarters(self, owner: str, uid: int) -> Quarters:
        """For a new process of a user. Another user's home is another one: it could not write to this one's."""
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
            f"{length} bytes: give one that is {length - LONGEST_TMP} bytes shorter, or say --pass-env TMPDIR"
        )

    def clear_unused(self) -> None:
        """Deletes the homes that no trial has had for long. No trial may run."""
        for gate in self.homes.iterdir() if self.homes.exists() else ():
            with suppress(OSError):  # an operator may delete there too
                if gate.stat().st_mtime < time.time() - UNUSED_S:
                    clear_away(gate)


def _new_tmp(above: Path) -> Path:
    return above / uuid.uuid4().hex[:12] / "t"
