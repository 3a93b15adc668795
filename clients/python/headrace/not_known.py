"""A source file for which it is not known which version a process runs.

It gets a unique digest, which equals neither that of known content nor that of another unknown file. In a list
of a trial's files that differ, it has a question mark.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from headrace.first_few import first_few

_DIGEST: Final = "unknown-"
_MARK: Final = "?"


def new_digest() -> str:
    """A new digest for such a file."""
    return _DIGEST + secrets.token_hex(8)


def is_digest(digest: str) -> bool:
    """Whether a digest means that the version is not known."""
    return digest.startswith(_DIGEST)


def marked(path: str) -> str:
    """The file's name in a list."""
    return path + _MARK


def is_marked(path: str) -> bool:
    """Whether the version of a listed file is not known."""
    return path.endswith(_MARK)


def plain(path: str) -> str:
    """The path of a listed file."""
    return path.removesuffix(_MARK)


def listing(listed: Sequence[str]) -> str:
    """Files that differ, in a sentence that explains the question mark."""
    said = " (changed while the program was starting)" if any(map(is_marked, listed)) else ""
    return first_few(listed) + said


def in_words(listed: Iterable[str]) -> str:
    """`model.py, loss.py were changed while the program was starting, so ...`; for files whose versions are all
    not known.
    """
    paths = [plain(path) for path in listed]
    several = len(paths) > 1
    were, versions = ("were", "versions run") if several else ("was", "version runs")
    return (
        f"{first_few(paths)} {were} changed while the program was starting, so which {versions} is not known"
    )
