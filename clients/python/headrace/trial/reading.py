"""Reads a checkpoint outside a trial, for example to load the best trial's model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.trial import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a trial had saved at a step; for a gang, what its rank 0 had."""

    step: int
    params: Mapping[str, Any]
    # The `state_dict()` of each tracked object, by its name in `t.track(...)`.
    tracked: Mapping[str, Any]
    # `t.state`.
    state: Mapping[str, Any]
    # The folder with the files of each object that saves itself.
    files: Mapping[str, Path] = field(default_factory=dict)


def read_checkpoint(where: str | Path) -> Saved:
    """What a trial saved. `where` is the checkpoint's folder or address, as printed by `headrace show` and `best`.

    Load a model with `model.load_state_dict(saved.tracked["model"])`. Tensors are on the CPU. Raises
    `FileNotFoundError` if there is no checkpoint, and `ValueError` for one that was damaged in its store, or for an
    address in a store such as S3, from which `headrace checkpoint get` copies the folder.
    """
    address = urlsplit(str(where))
    if address.scheme not in ("", "file"):
        raise ValueError(
            f"{where} is not on this machine; copy it here with `headrace checkpoint get`, and give the folder"
        )
    folder = Path(unquote(address.path)) if address.scheme else Path(where)
    from headrace.checkpoints import (
        CheckpointCorruptError,
    )  # with protobuf, which trials do not load for this
    from headrace.checkpoints.manifest import MANIFEST, verify

    if (folder / MANIFEST).is_file():  # a store's; a copy has none, and was verified when it was made
        try:
            verify(folder.absolute())
        except CheckpointCorruptError as error:
            raise ValueError(f"{error}. It was changed or damaged in the store") from error
    return saved_in(folder)


def saved_in(folder: Path) -> Saved:
    """What is in a folder that is whole."""
    part = checkpoint.read(folder)
    return Saved(
        step=part["step"],
        params=part["params"],
        tracked=part["tracked"],
        state=part["state"],
        files={name: checkpoint.files_of(folder, name) for name in part["files"]},
    )
