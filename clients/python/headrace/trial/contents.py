"""Which parts of a checkpoint are not empty, found without its tensors: they may be larger than this machine's
memory, and PyTorch may not be installed.
"""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any


def where_saved(folder: Path) -> str:
    """The member of `Saved` that has what rank 0 of the trial saved: `tracked`, or else `files`, or else `state`.

    Raises `ValueError` or `OSError` for a folder that cannot be read.
    """
    part = _part(folder)
    return next((name for name in ("tracked", "files", "state") if part.get(name)), "tracked")


def _part(folder: Path) -> dict[str, Any]:
    plain = folder / "rank-0.json"
    if plain.exists():
        part: dict[str, Any] = json.loads(plain.read_bytes())
        return part
    try:
        with zipfile.ZipFile(folder / "rank-0.pt") as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as file:
                loaded = _Outline(file).load()
    except (zipfile.BadZipFile, StopIteration, pickle.UnpicklingError) as error:
        raise ValueError(f"{folder} holds no checkpoint: {error}") from error
    return loaded if isinstance(loaded, dict) else {}


class _Blank(dict[Any, Any]):
    """A placeholder for any object of a class, which accepts whatever the pickle passes. No code of the class
    runs.
    """

    def __init__(self, *_: object) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        """Discards it."""


class _Outline(pickle.Unpickler):
    """Reads the plain dicts, lists and values of a PyTorch file."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:  # noqa: ARG002  (its base's signature)
        return _Blank

    def persistent_load(self, pid: Any, /) -> Any:  # noqa: ARG002  (its base's signature)
        return _Blank()
