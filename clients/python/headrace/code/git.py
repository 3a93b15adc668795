"""The commit of a folder, according to git; nothing without git or a repository."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 5.0
"""The time limit, for a very large repository or a slow disk: after that, no commit is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A commit, and whether the folder differs from it; files unknown to git count as differences."""

    commit: str
    dirty: bool


def revision_of(folder: Path) -> Revision | None:
    """The commit that is checked out in a folder or above it, or None."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", ".") if commit else None
    if not commit or changes is None:
        return None
    return Revision(commit=commit, dirty=bool(changes))


def _git(folder: Path, *arguments: str) -> str | None:
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else None
