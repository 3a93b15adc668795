"""The marker of a store: a small file in its root that holds the store's id.

A mount point without its file system is an empty folder, and a recreated bucket is an empty bucket. Neither has
the marker, so neither is mistaken for the store: nothing is saved there, and missing files do not count as
deleted. A marker is written once, when the first worker of a cluster uses the address
(`headrace_worker.store_watch`).
"""

import re
from abc import ABC, abstractmethod

from headrace.checkpoints.errors import StoreUnavailableError

MARKER = ".headrace-store"
"""The file's name. It contains only the id, so that a person can write it."""
_ID = re.compile(r"[A-Za-z0-9-]{8,64}")


class Marked(ABC):
    """A store that is identified by its marker."""

    expected = ""
    """The id that the marker must have; empty if any id is accepted."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The store's URL, as the user gave it."""

    @abstractmethod
    def _read_marker(self) -> bytes | None:
        """The marker's content; None if there is no marker. Raises `OSError` if that cannot be determined."""

    @abstractmethod
    def _write_marker(self, content: bytes) -> None:
        """Creates the root and the marker durably. Raises `OSError`."""

    @abstractmethod
    def _has_studies(self) -> bool:
        """Whether there is anything below `studies/`."""

    def identity(self) -> str:
        """The id in the marker; empty if there is none. Raises `StoreUnavailableError` if that cannot be
        determined.
        """
        try:
            content = self._read_marker()
        except StoreUnavailableError:
            raise
        except OSError as error:
            raise StoreUnavailableError(
                f"store {self.url} cannot be read: {error.strerror or error}"
            ) from error
        found = (content or b"").decode(errors="replace").strip()
        return found if _ID.fullmatch(found) else ""

    def require(self) -> None:
        """Raises `StoreUnavailableError` unless the store's marker exists and has the expected id."""
        found = self.identity()
        if not found:
            raise StoreUnavailableError(
                f"store {self.url} is away: its marker {MARKER} is not there. Mount it, or give the worker the store "
                f"of its cluster{self._remedy()}"
            )
        if self.expected and found != self.expected:
            raise StoreUnavailableError(
                f"store {self.url} is not this cluster's: its marker {MARKER} says {found}, not {self.expected}. Mount "
                f"the right one{self._remedy()}"
            )

    def set_up(self, identity: str, *, used: bool) -> None:
        """Writes the marker, unless there is one. `used` says that checkpoints were stored at this address. They
        must then exist: an empty place is not the store. Raises `StoreUnavailableError`, `OSError`.
        """
        if self.identity():
            return
        if used and not self._has_studies():
            raise StoreUnavailableError(
                f"store {self.url} is away: the cluster has checkpoints in it, and nothing lies there{self._remedy()}"
            )
        self._write_marker(identity.encode() + b"\n")

    def _remedy(self) -> str:
        return f"; if this is the right place, write {self.expected} into {MARKER}" if self.expected else ""
