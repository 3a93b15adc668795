"""What a requirements file was resolved to: each package by its name, its version and the hash of its file. Pure.

A lock is a text with a line for each package, sorted:

    numpy==2.0.1 --hash=sha256:3f2c…
    tool @ git+https://host/tool@5d41402abc4b2a76b9719d911017c592ae0f5b5c
    mine==0.1 @ ./mine

The first two are pinned: whoever installs them gets the same files, whichever index they come from. The last one
is a folder, whose content only the digest of the study's code identifies.
"""

import re
from pathlib import Path
from typing import Any, Final

from headrace.userfile import parse_json

_SWITCHES: Final = re.compile(r"--(no-index|pre|prefer-binary|require-hashes)")
_OF_INDEXES: Final = re.compile(r"(-i|-f|--(index-url|extra-index-url|find-links))[\s=]+(?P<value>\S+)")
_OF_NAMES: Final = re.compile(r"--(trusted-host|no-binary|only-binary)[\s=]+[^\s/]+")
_FETCHED: Final = re.compile(r"(git\+)?https?://[^\s$]+")
_NAMED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[\w\s,.-]*\])?\s*(@\s*(?P<url>\S+)|(\(?[<>=!~][^@/;:$]*)?)"
)
_ARCHIVE: Final = re.compile(r"\.(whl|zip|tar|tgz|tbz|txz|tlz|tar\.\w+)$", re.IGNORECASE)
_COMMIT: Final = re.compile(r"@[0-9a-f]{40}\b")
_STRONG: Final = ("sha256", "sha384", "sha512")
_SHOWN: Final = re.compile(r"(?P<name>[^\s=]+)(==(?P<version>\S+))?")


class EditableError(Exception):
    """A requirements file asks for an editable install."""


def refers_to_files(content: bytes) -> bool:
    """Whether a requirements file may refer to files of its folder or of the machine: a further requirements file,
    a path, a wheel. True also for anything that this function does not understand."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return True
    return not all(_is_elsewhere(line) for line in _lines(text))


def from_report(report: bytes, folder: Path) -> str:
    """The lock in an installation report of pip, whose paths below `folder` are relative to it. Raises
    `ValueError` for an invalid report, and `EditableError`."""
    try:
        return "".join(sorted(f"{_locked(item, folder)}\n" for item in parse_json(report)["install"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not an installation report: {error!r}") from error


def from_requirements(text: str) -> str:
    """The lock in a requirements file that uv has written, hashes and all. Raises `EditableError`."""
    lines = sorted(_lines(text))
    if any(line.startswith("-e") for line in lines):
        raise EditableError
    return "".join(f"{line}\n" for line in lines)


def is_pinned(lock: str) -> bool:
    """Whether the lock determines everything that is installed, without the study's code."""
    return all(" --hash=" in line or _COMMIT.search(line) for line in lock.splitlines())


def constraints(lock: str, *, hashes: bool) -> str:
    """What makes an installer choose the same packages again: the lines that name a package and its hash. Without
    `hashes`, only versions, because pip accepts no hash for some of what it installs."""
    lines = [
        line for line in lock.splitlines() if " --hash=" in line and not _ARCHIVE.search(line.split()[0])
    ]
    return "".join(f"{line if hashes else line.partition(' ')[0]}\n" for line in lines)


def shown(lock: str) -> str:
    """Its packages, for people to read."""
    found = (_SHOWN.match(line) for line in lock.splitlines())
    return ", ".join(" ".join(filter(None, match.group("name", "version"))) for match in found if match)


def _lines(text: str) -> list[str]:
    """The logical lines of a requirements file, without comments."""
    joined = re.sub(r"\\\r?\n", " ", text.removeprefix("\ufeff"))
    bare = (re.sub(r"(^|\s+)#.*", "", line) for line in joined.splitlines())
    return [" ".join(line.split()) for line in bare if line.strip()]


def _is_elsewhere(line: str) -> bool:
    """Whether a line names only packages of an index and addresses of other machines."""
    if _SWITCHES.fullmatch(line) or _OF_NAMES.fullmatch(line):
        return True
    if index := _OF_INDEXES.fullmatch(line):
        return bool(_FETCHED.fullmatch(index["value"]))
    line = re.sub(r"( --hash=\S+)+$", "", line)
    line = re.sub(r"\s*;[^/$]*$", "", line)  # when it is asked for
    if _FETCHED.fullmatch(line):
        return True
    named = _NAMED.fullmatch(line)
    if named is None or _ARCHIVE.search(named["name"]):
        return False
    return named["url"] is None or bool(_FETCHED.fullmatch(named["url"]))


def _locked(item: Any, folder: Path) -> str:  # Any: what JSON is
    found = item["download_info"]
    name = re.sub(r"[-_.]+", "-", str(item["metadata"]["name"])).lower()
    named = f"{name}=={item['metadata']['version']}"
    url = str(found["url"]).replace(folder.as_uri(), ".", 1)
    if found.get("dir_info", {}).get("editable"):
        raise EditableError
    if commit := found.get("vcs_info", {}).get("commit_id"):
        return f"{name} @ git+{url}@{commit}{_part(found)}"
    archive = found.get("archive_info", {})
    hashes = archive.get("hashes") or dict([archive["hash"].split("=", 1)] if archive.get("hash") else [])
    strong = next((kind for kind in _STRONG if kind in hashes), None)
    if strong is None:
        return f"{named} @ {url}{_part(found)}"
    return f"{named} --hash={strong}:{hashes[strong]}{_part(found)}"


def _part(found: Any) -> str:  # Any: what JSON is
    return f"#subdirectory={found['subdirectory']}" if found.get("subdirectory") else ""
