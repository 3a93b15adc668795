"""Follows all studies of the project, and those that are created later.

The list of studies says which have events that are not copied yet. Each of those gets a turn, the one that has waited
longest first, and a few threads take them in parallel. So an idle study holds no thread, and neither does one that
the tracker rejects: its next turn comes after a pause that grows to a minute. A study that fails in an unexpected way
does not affect the others. `extend` and `retry` continue a study that has ended; it then has new events.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.client import Client
from headrace.client.model import StudyInfo
from headrace.errors import HeadraceError
from headrace.track.exporter import LONGEST_PAUSE_S, Copy, Exporter, Stopped

POLL_S = 2.0
AT_ONCE = 16
"""How many turns there are at once, for each target."""
LONGEST_REST = int(LONGEST_PAUSE_S / POLL_S)


@dataclass(kw_only=True)
class _Followed:
    """A study that is followed."""

    copy: Copy
    copied: int = -1
    """The study's cursor when it had ended and was copied."""
    served: int = 0
    """The number of its last turn."""
    rest: int = 0
    """After how many lists of studies its next turn may come."""
    failures: int = 0
    busy: bool = False
    deleted: bool = False

    @property
    def cursor(self) -> int:
        """How far the copy is, as far as known."""
        return self.copy.sink.cursor if self.copy.sink is not None else self.copied


@dataclass(kw_only=True)
class AllStudies:
    """The studies of a project, and one exporter."""

    client: Client
    exporter: Exporter
    done: Callable[[StudyInfo], None]
    """Called when an ended study has been copied."""
    _followed: dict[str, _Followed] = field(default_factory=dict)
    """By uid."""
    _due: deque[_Followed] = field(default_factory=deque)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turns: int = 0

    def run(self) -> None:
        """Runs until the exporter is to end, or the scheduler rejects its credentials."""
        pause_s = 0.0
        while not self.exporter.wait(pause_s):
            try:
                found = self.client.studies()
            except HeadraceError as error:
                if not error.retryable:
                    raise
                self.exporter.scheduler.failed(error)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s or POLL_S)
                continue
            pause_s = POLL_S
            self.exporter.scheduler.worked()
            self._plan(found)
        for thread in self._threads:
            thread.join()
        for followed in self._followed.values():
            followed.copy.close()

    def _plan(self, found: Sequence[StudyInfo]) -> None:
        """Decides whose turn it is, and starts threads for that."""
        with self._lock:
            listed = {study.uid for study in found}
            for uid in [uid for uid, one in self._followed.items() if uid not in listed and not one.busy]:
                self._end(self._followed.pop(uid))
            due = []
            for study in found:
                if study.uid not in self._followed:
                    copy = Copy(study=self.client.study(study.name), uid=study.uid)
                    self._followed[study.uid] = _Followed(copy=copy)
                one = self._followed[study.uid]
                one.rest = max(0, one.rest - 1)
                # An ended study whose sink is open is yet to be closed.
                open_yet = study.state.ended and one.copy.sink is not None
                behind = one.cursor != study.cursor or open_yet
                if behind and not (one.busy or one.rest or one.deleted):
                    due.append((one.served, study.state.ended, one))
            self._due = deque(one for *_, one in sorted(due, key=lambda item: item[:2]))
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for _ in range(min(len(self._due), AT_ONCE - len(self._threads))):
                thread = threading.Thread(target=self._work, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _end(self, one: _Followed) -> None:
        """The study was deleted."""
        self.exporter.trouble.over(one.copy.study.name)
        one.copy.close()

    def _work(self) -> None:
        """Takes turns until none is due."""
        while True:
            with self._lock:
                if not self._due:
                    return
                one = self._due.popleft()
                one.busy = True
                self._turns += 1
                one.served = self._turns
            try:
                failed = self._turn(one)
            except Stopped:
                return
            finally:
                one.busy = False
            one.failures = one.failures + 1 if failed else 0
            one.rest = min(LONGEST_REST, 2 ** min(one.failures, 10)) if failed else 0

    def _turn(self, one: _Followed) -> bool:
        """Whether the turn failed."""
        try:
            turn = self.exporter.turn(one.copy, to_end=False)
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the other studies' copies
            one.copy.close()
            said = error if isinstance(error, HeadraceError) else HeadraceError(f"unexpected: {error!r}.")
            self.exporter.trouble.failed(said, one.copy.study.name, f"Trying {one.copy.study.name} again.")
            return True
        one.deleted = turn.deleted
        if turn.final is not None:
            one.copied = turn.final.cursor
            self.done(turn.final)
        return turn.failed
