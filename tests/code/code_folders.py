"""Folders, and archives of them, for the tests."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.code import Folder, read_folder, write_archive
from headrace.code.archive import MANIFEST


def folder_with(root: Path, files: dict[str, str]) -> Path:
    """A folder with these files; a path that ends with a slash is an empty folder."""
    for path, text in files.items():
        place = root / path
        if path.endswith("/"):
            place.mkdir(parents=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return root


def archived(root: Path) -> tuple[Folder, bytes]:
    """A folder as it is read, and its archive."""
    folder = read_folder(root)
    out = io.BytesIO()
    write_archive(folder, out)
    return folder, out.getvalue()


def forged(
    rows: Iterable[dict[str, Any]], members: Iterable[tuple[tarfile.TarInfo, bytes]]
) -> tuple[str, bytes]:
    """A forged archive: the digest of a manifest with these rows, and a tar with it and these members."""
    document = {"version": 1, "entries": list(rows)}
    manifest = json.dumps(document, indent=0, sort_keys=True).encode() + b"\n"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        first = tarfile.TarInfo(MANIFEST)
        first.size = len(manifest)
        tar.addfile(first, io.BytesIO(manifest))
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return hashlib.sha256(manifest).hexdigest(), out.getvalue()


def row(path: str, data: bytes = b"", **changes: Any) -> dict[str, Any]:
    """A manifest's row for a file."""
    return {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}


def member(path: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a tar."""
    info = tarfile.TarInfo(path)
    info.size = len(data)
    for name, value in fields.items():
        setattr(info, name, value)
    return info, data
