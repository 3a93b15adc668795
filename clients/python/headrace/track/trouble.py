"""What people are told about a target or the scheduler that fails: the trouble of the moment, and its end."""

import threading

from headrace.errors import HeadraceError
from headrace.track.tracker import Say


class Trouble:
    """Says what does not work, when that changes, and that it works again. Shared by the threads of a target."""

    def __init__(self, title: str, say: Say) -> None:
        self._title, self._say = title, say
        self._lock = threading.Lock()
        self._present: dict[str, str] = {}
        """The message of each study in trouble."""

    def failed(
        self, error: HeadraceError, study: str = "", then: str = "Trying again until it works."
    ) -> None:
        """A call for a study failed. The same message about several studies is said once."""
        with self._lock:
            new = error.message not in self._present.values()
            self._present[study] = error.message
            if new:
                self._say(" ".join(filter(None, (f"{self._title}: {error.message}", error.remedy, then))))

    def worked(self, study: str = "") -> None:
        """A call for a study succeeded."""
        with self._lock:
            message = self._present.pop(study, None)
            if message is not None and message not in self._present.values():
                self._say(f"{self._title} works again{f' for {study}' if self._present else ''}.")

    def over(self, study: str) -> None:
        """The study is no longer copied."""
        with self._lock:
            self._present.pop(study, None)
