"""A source file of which nobody can say which version a process runs.

Its digest is one of its own, so it equals no other: neither a known content nor another that is not known. Where a
trial's files are listed that differ, it stands with a question mark.
"""

import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from headrace.first_few import first_few

_DIGEST: Final = "unknown-"
_MARK: Final = "?"


def new_digest() -> str:
    """A digest for such a file."""
    return _DIGEST + secrets.token_hex(8)


def is_digest(digest: str) -> bool:
    """Whether a digest says that the version is not known."""
    return digest.startswith(_DIGEST)


def marked(path: str) -> str:
    """How the file is listed."""
    return path + _MARK


def is_marked(path: str) -> bool:
    """Whether a listed file is such a one."""
    return path.endswith(_MARK)


def plain(path: str) -> str:
    """The path of a listed file."""
    return path.removesuffix(_MARK)


def listing(listed: Sequence[str]) -> str:
    """Files that differ, in a sentence, with what the mark says."""
    said = " (changed while the program was starting)" if any(map(is_marked, listed)) else ""
    return first_few(listed) + said


def in_words(listed: Iterable[str]) -> str:
    """`model.py, loss.py were changed while the program was starting, so ...`; of files that are all not known."""
    paths = [plain(path) for path in listed]
    several = len(paths) > 1
    were, versions = ("were", "versions run") if several else ("was", "version runs")
    return (
        f"{first_few(paths)} {were} changed while the program was starting, so which {versions} is not known"
    )
