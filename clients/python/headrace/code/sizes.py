"""Sizes of files, for people. Pure."""

from collections import defaultdict
from collections.abc import Mapping

_MOST = 0.8
"""If one entry has more than this fraction of a folder's bytes, that entry is listed in place of the folder."""


def size(count: int) -> str:
    """A number of bytes in words."""
    for unit, each in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= each:
            return f"{count / each:.1f} {unit}"
    return f"{count} B"


def largest(files: Mapping[str, int], count: int) -> list[tuple[str, int]]:
    """The largest entries: files, and folders (ending in a slash), which represent everything below them. No
    entry contains another one.
    """
    sums: dict[str, int] = defaultdict(int)
    below: dict[str, set[str]] = defaultdict(set)
    for path, bytes_ in files.items():
        child, parts = path, path.split("/")
        sums[path] += bytes_
        for depth in range(len(parts) - 1, -1, -1):
            folder = "/".join(parts[:depth]) + "/" if depth else ""
            below[folder].add(child)
            sums[folder] += bytes_
            child = folder
    found: list[tuple[str, int]] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for child in below[folder]:
            telling = child.endswith("/") and any(sums[inner] > _MOST * sums[child] for inner in below[child])
            if telling:
                waiting.append(child)
            else:
                found.append((child, sums[child]))
    return sorted(found, key=lambda row: (-row[1], row[0]))[:count]
