"""A checkpoint on disk: one folder, with one part per rank.

    rank-0.pt, rank-1.pt, …    the state of each rank; state that is equal on all ranks is only in rank 0's part
    objects/NAME/…             the files of an object that saves itself, on all ranks together

A trial with one process has the part of rank 0. Its folder appears complete, or not at all (`durable.filled`).

The ranks of a gang fill one folder together. A rank first writes the files of its objects, and its part last, by
a rename. Each part says how many ranks there are, so a folder is a checkpoint exactly if the parts of all ranks
exist. `rank-N.pt` is loaded with `weights_only=True`, `rank-N.json` by the JSON reader: neither runs code.
"""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from headrace import durable
from headrace.trial.codec import decode, encode

FORMAT = 2
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OBJECTS = "objects"


class DiskFullError(OSError):
    """There is no disk space for the checkpoint. This is a problem of the machine, which may pass."""


class IncompleteError(ValueError):
    """The checkpoint lacks the part of a rank."""


class UnreadableError(ValueError):
    """The checkpoint to continue from cannot be read. The trial's program is not to blame: errors of its own
    objects (`load_state_dict`) are raised unchanged.
    """


def write(folder: Path, part: dict[str, Any], *, fill: Callable[[Path], None] | None = None) -> Path:
    """Writes the folder of a trial with one process and returns it; replaces anything that an earlier attempt
    left there.

    `fill` writes the files of objects that save themselves, into the folder that is passed to it. Raises
    `DiskFullError`, or another `OSError`.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    with translated(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with durable.filled(folder, partial):
            if fill is not None:
                fill(partial)
            torch = sys.modules.get("torch")
            with (partial / _name(0, torch)).open("wb") as file:
                _save(part, file, torch)
            durable.flush_below(partial)
    return folder


def write_part(folder: Path, part: dict[str, Any], *, rank: int) -> None:
    """Writes one rank's part into an existing folder: it appears complete, or not at all.

    Raises `DiskFullError`, or another `OSError`.
    """
    torch = sys.modules.get("torch")
    with translated(folder.parent), durable.written(folder / _name(rank, torch), mode=0o666) as file:
        _save(part, file, torch)


def _name(rank: int, torch: ModuleType | None) -> str:
    return f"rank-{rank}.{'json' if torch is None else 'pt'}"


def _save(part: dict[str, Any], file: BinaryIO, torch: ModuleType | None) -> None:
    plain = encode({"format": FORMAT, **part}, "checkpoint", for_json=torch is None)
    if torch is None:
        file.write(json.dumps(plain).encode())
    else:
        torch.save(plain, file)


@contextmanager
def translated(place: Path) -> Iterator[None]:
    """Raises `DiskFullError`, which names the place, if the code in this context fails because of a full disk."""
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        if (cause := _full_disk(error)) is not None:
            raise DiskFullError(cause.errno, f"{cause.strerror}: {place}") from error
        raise


def files_of(folder: Path, name: str) -> Path:
    """The folder with the files of an object that saves itself."""
    return folder / _OBJECTS / name


def sync_files(folder: Path) -> None:
    """Flushes the files that objects wrote by themselves; each rank flushes all of them."""
    for path in (folder / _OBJECTS).rglob("*"):
        with suppress(FileNotFoundError):  # another rank's temporary file
            durable.flush(path)


def ranks_in(folder: Path) -> list[int]:
    """The ranks whose part is in the folder."""
    found = {path.stem.removeprefix("rank-") for path in folder.glob("rank-*.*")}
    return sorted(int(number) for number in found if number.isdecimal())


def read(folder: Path, rank: int = 0) -> dict[str, Any]:
    """The part of a rank in `folder`. Tensors are on the CPU; the objects move them to their devices.

    Raises `FileNotFoundError` if there is no such part, `IncompleteError` if that of another rank is missing,
    and `ValueError` for an unknown format.
    """
    if (folder / f"rank-{rank}.pt").exists():
        import torch  # the checkpoint was written with it

        plain = torch.load(folder / f"rank-{rank}.pt", map_location="cpu", weights_only=True)
    elif (folder / f"rank-{rank}.json").exists():
        plain = json.loads((folder / f"rank-{rank}.json").read_bytes())
    else:
        raise FileNotFoundError(f"{folder} holds no checkpoint: neither rank-{rank}.pt nor rank-{rank}.json")
    if plain.get("format") != FORMAT:
        raise ValueError(
            f"{folder} has checkpoint format {plain.get('format')!r}; this Headrace reads {FORMAT}"
        )
    part: dict[str, Any] = decode(plain)
    missing = sorted(set(range(part["world_size"])) - set(ranks_in(folder)))
    if missing:
        raise IncompleteError(
            f"{folder} is not a complete checkpoint: of {part['world_size']} ranks, rank "
            f"{', '.join(map(str, missing))} has no part in it"
        )
    return part


def read_to_continue(folder: Path, rank: int = 0) -> dict[str, Any]:
    """The same, for a trial that continues from it. Raises `UnreadableError`. An `ImportError`, if PyTorch is
    missing, and a `MemoryError` are raised unchanged, as they say nothing about the checkpoint.
    """
    try:
        return read(folder, rank)
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        raise UnreadableError(f"the checkpoint cannot be read: {error}") from error


def _full_disk(error: BaseException) -> OSError | None:
    """The full disk behind an error: `torch.save` reports an "unexpected pos", and the full disk is only its
    context.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
