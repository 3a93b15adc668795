"""Follows all studies of the project, those that come later too: one thread for each study and target.

A study that ended and was copied is followed again if it gets new events: `extend` and `retry` continue it.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.client import Client
from headrace.client.model import StudyInfo
from headrace.errors import HeadraceError
from headrace.track.exporter import LONGEST_PAUSE_S, Exporter, Stopped

POLL_S = 2.0
MOST_AT_ONCE = 64
"""The most studies that are followed at once, for each target. Others wait; active ones come first."""


@dataclass(kw_only=True)
class Everything:
    """The studies of a project, and one exporter."""

    client: Client
    exporter: Exporter
    done: Callable[[StudyInfo], None]
    """Called when an ended study has been copied."""
    _copied: dict[str, int] = field(default_factory=dict)
    """The cursors of copied studies, by uid."""
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _failed: list[BaseException] = field(default_factory=list)

    def run(self) -> None:
        """Runs until the exporter is to end, or the scheduler rejects its credentials."""
        pause_s = POLL_S
        first = True
        while not self.exporter.wait(0 if first else pause_s):
            first = False
            if self._failed:
                raise self._failed[0]
            try:
                found = self.client.studies()
            except HeadraceError as error:
                if not error.retryable:
                    raise
                self.exporter.scheduler.failed(error)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                continue
            pause_s = POLL_S
            self.exporter.scheduler.worked()
            self._start(sorted(found, key=lambda study: study.state.ended))
        for thread in self._threads.values():
            thread.join()

    def _start(self, found: Iterable[StudyInfo]) -> None:
        self._threads = {uid: thread for uid, thread in self._threads.items() if thread.is_alive()}
        for study in found:
            if len(self._threads) >= MOST_AT_ONCE:
                return
            if study.uid not in self._threads and self._copied.get(study.uid, -1) < study.cursor:
                thread = threading.Thread(target=self._follow, args=(study,), daemon=True)
                self._threads[study.uid] = thread
                thread.start()

    def _follow(self, study: StudyInfo) -> None:
        try:
            final = self.exporter.follow(self.client.study(study.name))
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._failed.append(error)
            return
        if final is None:
            self._copied[study.uid] = study.cursor
            return
        self._copied[final.uid] = final.cursor
        self.done(final)
