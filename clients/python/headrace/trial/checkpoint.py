"""A checkpoint on disk: one folder that is either complete or not there.

The folder is filled under a temporary name, its files and itself are fsynced, it is renamed, and the parent
is fsynced. A process that is killed at any instant leaves at most a folder whose name begins with a dot; a write
that fails leaves nothing.
`state.pt` is loaded with `weights_only=True`, `state.json` by the JSON reader: neither runs code.
"""

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from headrace.trial.codec import decode, encode

FORMAT = 1
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(OSError):
    """There is no room for the checkpoint: the machine's trouble, which may pass."""


def write(folder: Path, document: dict[str, Any]) -> Path:
    """Writes the document as the folder `folder` and returns it; replaces what an earlier attempt left there.

    Raises `DiskFullError`, or another `OSError`.
    """
    torch = sys.modules.get("torch")
    plain = encode({"format": FORMAT, **document}, "checkpoint", for_json=torch is None)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with (partial / ("state.json" if torch is None else "state.pt")).open("wb") as file:
            if torch is None:
                file.write(json.dumps(plain).encode())
            else:
                torch.save(plain, file)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(partial)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except Exception as error:
        shutil.rmtree(partial, ignore_errors=True)
        if (cause := _full_disk(error)) is not None:
            raise DiskFullError(cause.errno, f"{cause.strerror}: {folder.parent}") from error
        raise
    _sync_folder(folder.parent)
    return folder


def read(folder: Path, name: str = "state") -> dict[str, Any]:
    """The document in `folder`. Tensors come to the CPU; the objects put them where they belong."""
    if (folder / f"{name}.pt").exists():
        import torch  # the checkpoint was written with it

        plain = torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
    elif (folder / f"{name}.json").exists():
        plain = json.loads((folder / f"{name}.json").read_bytes())
    else:
        raise FileNotFoundError(f"{folder} holds no checkpoint: neither {name}.pt nor {name}.json")
    if plain.get("format") != FORMAT:
        raise ValueError(
            f"{folder} has checkpoint format {plain.get('format')!r}; this Headrace reads {FORMAT}"
        )
    document: dict[str, Any] = decode(plain)
    return document


def try_encode(state: Any, name: str) -> None:
    """Raises `TypeError`, naming the part, where `write` would refuse this state."""
    encode(state, name, for_json="torch" not in sys.modules)


def _full_disk(error: BaseException) -> OSError | None:
    """The full disk behind an error: `torch.save` speaks of an "unexpected pos" and has it for a context only."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
