"""The token that a worker was given to join with: its text, or a file that holds it.

A file is read when the worker needs to join, and removed if its token lets nobody else in. The credential records
which token that was: if a daemon is killed in between, it removes the file at its next start. A worker that has
joined needs neither, so the same command line starts it again.
"""

import logging
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import InvalidFieldError, Violation
from headrace.hidden import hide_from_command_line
from headrace_worker.run_as import OtherUser

log = logging.getLogger(__name__)
VARIABLE = "HEADRACE_JOIN_TOKEN"
_FIELD = "--join"
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class GivenToken:
    """A text, or the file to read it from."""

    text: str = field(default="", repr=False)
    file: Path | None = None

    def read(self, trials: OtherUser | None) -> str:
        """The token. Raises `InvalidFieldError` if the file holds none, or if the user that trials run as may read
        it."""
        if self.file is None:
            return self.text
        try:
            with self.file.open("rb") as opened:
                if trials is not None and trials.may_read(opened.fileno()):
                    raise _fault(
                        str(self.file),
                        f"can be read by user {trials.name}, which trials run as",
                        f"Let only the worker read it: `chmod 600 {self.file}`.",
                    )
                found = opened.read(_LONGEST).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise _fault("", f"{self.file} cannot be read: {why}", _ANOTHER) from None
        if not found:
            raise _fault("", f"{self.file} holds no token", _ANOTHER)
        return found

    @property
    def id(self) -> str:
        """The part of the token that is not secret; empty if there is none to read."""
        try:
            return id_of(self.read(None))
        except InvalidFieldError:
            return ""

    def remove(self) -> None:
        """Removes the file, or says why it stays."""
        if self.file is None:
            return
        try:
            kind = self.file.lstat().st_mode
            if not stat.S_ISREG(kind):  # a pipe from the shell leaves nothing to remove
                if stat.S_ISLNK(kind) and self.file.is_file():
                    log.warning(
                        "the join token in %s is used up; it is a link: remove the file itself", self.file
                    )
                return
            self.file.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("the join token in %s is used up; remove the file: %s", self.file, error.strerror)
        else:
            log.info("the join token is used up: %s is removed", self.file)


def given(option: str | None) -> GivenToken | None:
    """What `--join` or its variable says; the token stays neither on the command line nor in the environment.
    Raises `InvalidFieldError`."""
    os.environ.pop(VARIABLE, None)  # so that no child inherits it
    if option == "-":
        text = sys.stdin.read(_LONGEST).strip()
        if not text:
            raise _fault("", "standard input holds no token", _ANOTHER)
        return GivenToken(text)
    if option is not None and option.startswith("@"):
        return GivenToken(file=Path(option[1:]).expanduser().absolute())
    hide_from_command_line(option)
    text = (option or "").strip()
    return GivenToken(text) if text else None


def id_of(token: str) -> str:
    """The part of a token that is not secret."""
    parts = token.split("_", 2)
    return parts[1] if len(parts) == 3 else ""


_ANOTHER = "Create a token: `headrace worker-token create --worker NAME`."


def _fault(value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=_FIELD, value=value, message=message, remedy=remedy)])
