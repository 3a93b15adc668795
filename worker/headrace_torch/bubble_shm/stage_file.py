"""A stage's file: made by its rank, mapped by the agent and by the trial."""

import json
import mmap
import os
import re
import secrets
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from headrace_torch.bubble_shm.layout import (
    HEADER_WORDS,
    MAGIC,
    RECORD,
    RING_SIZES,
    RINGS,
    SIZE_BYTES,
    VERSION,
)

FOLDER_VARIABLE: Final = "HEADRACE_BUBBLES"
"""The environment variable for the folder; ranks, trials and the agent need the same one."""
SUFFIX: Final = ".bubble"
LONGEST_JOB: Final = 200
_HEADER_BYTES: Final = 8 * (HEADER_WORDS - 3)


class StageFileError(OSError):
    """A stage's file cannot be made or read; the message says why, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHeader:
    """What a rank says about itself, once.

    Attributes:
        job: name of the primary.
        replica: its data-parallel group.
        stage, stages: its place in the pipeline, from 0.
        rank: its number in the whole job.
        device: the device's identifier, or `cpu`.
        pid, started: the rank's process, and when it started (clock ticks since boot).
    """

    job: str
    replica: int
    stage: int
    stages: int
    rank: int
    device: str
    pid: int
    started: int


def folder() -> Path:
    """Returns the folder of stage files: HEADRACE_BUBBLES, else a folder of this user's in /dev/shm."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path(f"/dev/shm/headrace-bubbles-{os.getuid()}")  # noqa: S108  it is memory


def make_folder(place: Path) -> None:
    """Makes the folder of stage files, for this user only, if it is missing.

    Raises:
        StageFileError: it cannot be made, or others may write to it.
    """
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = place.stat()
    except OSError as error:
        raise StageFileError(_unusable(place, error)) from None
    if told.st_uid != os.getuid() or stat.S_IMODE(told.st_mode) & 0o022:
        raise StageFileError(
            f"{place} belongs to another user, or others may write in it: "
            f"set {FOLDER_VARIABLE} to a folder of mode 700"
        )


def file_name(job: str, replica: int, stage: int) -> str:
    """Returns the name of a stage's file."""
    plain = re.sub(r"[^\w.-]", "_", job)[:100] or "job"
    return f"{plain}.{replica}.{stage}{SUFFIX}"


def started_ticks(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; None if there is none, or only a zombie."""
    try:
        told = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if told[0] in "ZX" else int(told[19])


def is_alive(pid: int, started: int) -> bool:
    """Whether the process that started at that time is still running."""
    return started_ticks(pid) == started


class StageFile:
    """A mapped file. `words` is a sequence of unsigned 64-bit words; `layout.AT` says which is which."""

    def __init__(self, path: Path, mapped: mmap.mmap, inode: int, header: StageHeader) -> None:
        """Use `create` or `open`."""
        self.path, self.inode, self.header = path, inode, header
        self.map = mapped
        self.words = memoryview(mapped).cast("Q")

    @classmethod
    def create(cls, place: Path, header: StageHeader) -> "StageFile":
        """Makes the file of a stage, complete before anybody can see it; it replaces the file of a process that
        has ended.

        Raises:
            StageFileError: the folder is not only this user's, or another running process holds the stage.
        """
        path, told = (
            place / file_name(header.job, header.replica, header.stage),
            json.dumps(asdict(header)).encode(),
        )
        if len(header.job) > LONGEST_JOB or len(told) > _HEADER_BYTES:
            raise StageFileError(f"the job's name {header.job[:40]!r}… is too long: give a shorter one")
        try:
            make_folder(place)
            problem = _taken(path, header)
            hidden = place / f".{path.name}.{secrets.token_hex(4)}"
            if not problem:
                with hidden.open("xb+") as file:
                    os.ftruncate(file.fileno(), SIZE_BYTES)
                    mapped = mmap.mmap(file.fileno(), SIZE_BYTES)
                    inode = os.fstat(file.fileno()).st_ino
                mapped[24 : 24 + len(told)] = told
                made = cls(path, mapped, inode, header)
                made.words[0], made.words[1], made.words[2] = MAGIC, VERSION, len(told)
                hidden.replace(path)
        except StageFileError:
            raise
        except OSError as error:
            problem = _unusable(place, error)
        if problem:
            raise StageFileError(problem)
        return made

    @classmethod
    def open(cls, path: Path) -> "StageFile":
        """Maps a file that a rank has made.

        Raises:
            StageFileError: it does not exist, or has another version.
        """
        try:
            with path.open("rb+") as file:
                told = os.fstat(file.fileno())
                mapped = mmap.mmap(file.fileno(), SIZE_BYTES) if told.st_size == SIZE_BYTES else None
        except OSError as error:
            raise StageFileError(f"{path} cannot be read: {error}") from None
        if mapped is None:
            raise StageFileError(
                f"{path} is not a stage's file of version {VERSION}: use one release of headrace"
            )
        magic, version, length = (int.from_bytes(mapped[8 * i : 8 * i + 8], "little") for i in range(3))
        if magic != MAGIC or version != VERSION or length > _HEADER_BYTES:
            mapped.close()
            raise StageFileError(
                f"{path} has version {version}, and this is version {VERSION}: use one release of headrace"
            )
        try:
            header = StageHeader(**json.loads(mapped[24 : 24 + length]))
        except (TypeError, ValueError):
            mapped.close()
            raise StageFileError(f"{path} has no header that can be read") from None
        return cls(path, mapped, told.st_ino, header)

    def replaced(self) -> bool:
        """Whether the path is gone, or is another file: the rank has ended or restarted."""
        try:
            return self.path.stat().st_ino != self.inode
        except OSError:
            return True

    def alive(self) -> bool:
        """Whether the rank is still running."""
        return is_alive(self.header.pid, self.header.started)

    def records(self, ring: int, count: int, since: int) -> list[tuple[int, ...]]:
        """Returns the records of a ring that were written after `since`, oldest first; overwritten ones are
        missing.

        Args:
            ring: 0 for windows, 1 for steps, 2 for stretches.
            count: index of the ring's count in `words`.
            since: the count at the last call.
        """
        size, start = RING_SIZES[ring], RINGS[ring]
        written = self.words[count]
        first = max(since, written - size + 1)
        found = []
        for number in range(first, written):
            here = start + number % size * RECORD
            found.append((number, *self.words[here : here + RECORD]))
        kept = self.words[count] - size + 1
        return [tuple(record[1:]) for record in found if record[0] >= kept]

    def close(self) -> None:
        """Unmaps. The file stays."""
        self.words.release()
        self.map.close()


def _unusable(place: Path, error: OSError) -> str:
    return f"{place} cannot hold the stages' files: {error}; set {FOLDER_VARIABLE} to a folder in memory"


def _taken(path: Path, header: StageHeader) -> str:
    """The other process that holds the stage; empty if none does."""
    if not path.exists():
        return ""
    try:
        other = StageFile.open(path)
    except StageFileError:
        return ""  # it is replaced
    mine = (header.pid, header.started)
    taken = (other.header.pid, other.header.started) != mine and other.alive()
    other.close()
    if not taken:
        return ""
    pid, where = other.header.pid, f"stage {header.stage} of job {header.job!r}"
    return f"process {pid} holds {where}: give this job another name"
