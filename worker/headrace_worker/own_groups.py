"""How the processes of a trial that runs as another user are identified, whatever they do: by their own groups.

    the daemon's home → a group          all its trials have it, including those of a daemon that was killed
    a project         → a group          its trials have it, and only they may enter their home (`quarters`)
    a trial's process → a further group  its descendants have it, and those of no other trial

A process inherits its supplementary groups, keeps them over exec, and needs root's rights to change them. Anybody
may read them in /proc. So a child that has left the session, lost its parent and cleared its environment is still
found, and distinguished from those of the same user's other trials.

No file but the gates of such homes belongs to these groups. Their numbers are in a range that neither
distributions nor systemd nor container engines allocate (https://systemd.io/UIDS-GIDS/). A user namespace may lack
them: there, trials have none.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HOMES: Final = 0x7000_0000
_TRIALS: Final = 0x7800_0000
_END: Final = 0x8000_0000


@dataclass(frozen=True, slots=True)
class Group:
    """A group that identifies processes."""

    number: int
    # Their user; None: any user.
    uid: int | None = None

    def has(self, pid: int) -> bool:
        """Whether a process belongs to it. Raises `OSError` if the process is gone."""
        # The folder's owner shows the user, even of a process that hides its files from others; `status` is slower
        # to read.
        if self.uid is not None and os.stat(f"/proc/{pid}").st_uid != self.uid:  # noqa: PTH116 - there are many
            return False
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"Groups:"):
                return self.number in map(int, line.split()[1:])
        return False


def of_family(family: str) -> int:
    """The group of all trials of the daemons on a home, by the name of its processes (`standby.family`)."""
    return _drawn(family)


def of_project(family: str, owner: str) -> int:
    """The group of a project's trials on a home."""
    return _drawn(f"{family}\0{owner}")


def of_new_process() -> int:
    """A new group that no other process has."""
    return _TRIALS + secrets.randbelow(_END - _TRIALS)


def among(spelled: str) -> list[int]:
    """Those of a user's groups that identify processes, in the form that the shim takes."""
    numbers = (int(number) for number in spelled.rpartition(":")[2].split(",") if number)
    return [number for number in numbers if _HOMES <= number < _END]


def _drawn(name: str) -> int:
    digest = hashlib.sha256(name.encode()).digest()
    return _HOMES + int.from_bytes(digest[:8]) % (_TRIALS - _HOMES)


def exist() -> bool:
    """Whether the kernel knows these numbers here."""
    try:
        lines = Path("/proc/self/gid_map").read_text().splitlines()
    except OSError:  # a kernel without user namespaces
        return True
    return any(covers(*map(int, line.split())) for line in lines)


def covers(first: int, _: int, count: int) -> bool:
    """Whether a line of a group map covers all of them."""
    return first <= _HOMES and first + count >= _END
