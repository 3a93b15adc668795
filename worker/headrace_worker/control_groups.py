"""A control group for each process of a trial that runs as another user, if root may make one here (cgroup v2).

A process is in its parent's control group, and only root can move it. The kernel ends all processes of a group at
once, even those that fork and exit faster than anyone can look. Elsewhere the processes are found and ended one by
one (`process`).

    the daemon's own control group
      headrace-GROUP-…   named after the groups that identify the process (`own_groups`)
    the home
      control-groups     the control groups in which its daemons made them: written before the first is made

The next daemon on a home may start elsewhere, for example in another login or as a service. It ends the processes
that are left in all of these groups.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from headrace.durable import replace

log = logging.getLogger(__name__)
_PREFIX = "headrace-"
_NOTE = "control-groups"
_POLL_S = (0.005, 0.5)


def make(numbers: list[int]) -> Path | None:
    """Makes one for a process that is identified by these groups; None if there are no control groups."""
    above = _own()
    if above is None:
        return None
    folder = above / (_PREFIX + "-".join(map(str, numbers)))
    try:
        folder.mkdir()
    except OSError as error:
        log.debug("no control group: %s", error)
        return None
    if (folder / "cgroup.kill").exists():  # since Linux 5.14
        return folder
    remove(folder)
    return None


def remove(folder: Path) -> None:
    """Removes an empty one."""
    with suppress(OSError):
        folder.rmdir()


async def end(folder: Path) -> None:
    """Kills all processes in one, waits until none of them is left, and removes it."""
    pause_s, longest_s = _POLL_S
    with suppress(OSError):  # somebody removed it, or the kernel forbids it: then they are ended one by one
        (folder / "cgroup.kill").write_text("1")
        while "populated 1" in (folder / "cgroup.events").read_text():
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, longest_s)
    remove(folder)


async def end_all(home: Path, number: int) -> None:
    """Ends all processes that are identified by a group, wherever the daemons on a home made their control groups,
    and records in the home where this daemon makes its own. Raises `OSError` if that cannot be recorded."""
    kept = [] if (above := _own()) is None else [above]
    for folder in {*_noted(home), *kept}:
        for one in _in(folder, number):
            await end(one)
        if folder not in kept and next(_in(folder, number), None) is not None:
            kept.append(folder)  # the kernel forbids it here; the next daemon may be allowed to
    _note(home, kept)


def note(home: Path) -> None:
    """Records, in a home that was made again, where control groups are made."""
    if (above := _own()) is not None:
        _note(home, [above])


def _in(folder: Path, number: int) -> Iterator[Path]:
    """The control groups below this one whose processes are identified by a group."""
    for one in folder.glob(f"{_PREFIX}*"):
        if str(number) in one.name.removeprefix(_PREFIX).split("-") and (one / "cgroup.kill").exists():
            yield one


def _noted(home: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return [Path(os.fsdecode(line)) for line in (home / _NOTE).read_bytes().split(b"\0") if line]
    return []


def _note(home: Path, folders: list[Path]) -> None:
    if set(folders) != set(_noted(home)):
        replace(home / _NOTE, b"\0".join(map(os.fsencode, folders)))


def of(pid: int | str) -> bytes:
    """The control groups of a process, without those that are made here. Raises `OSError` if the process is gone."""
    lines = []
    for line in Path(f"/proc/{pid}/cgroup").read_bytes().splitlines():
        above, _, name = line.rpartition(b"/")
        ours = line.startswith(b"0::") and name.startswith(_PREFIX.encode())
        lines.append(above + b"/" * above.endswith(b":") if ours else line)
    return b"\n".join(lines)


@cache
def _own() -> Path | None:
    """The folder of the daemon's own control group; None if no control groups can be made in it."""
    if os.geteuid() != 0:
        return None
    try:
        mine = next(
            line.removeprefix("0::")
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
        root, mount = next(
            (fields[3], fields[4])
            for fields in map(str.split, Path("/proc/self/mountinfo").read_text().splitlines())
            if fields[fields.index("-") + 1] == "cgroup2"
        )
        folder = Path(mount) / Path(mine).relative_to(root)
    except (OSError, StopIteration, ValueError):
        return None
    return folder if folder.is_dir() and os.access(folder, os.W_OK) else None
