"""Follows a study over any number of streams, without losing or repeating an event.

`WatchPosition` is the pure part: the cursor of the last event that was passed on. A stream that breaks is
followed by another that starts after the cursor; events that an old or careless server repeats are dropped by
cursor. A stream that ends cleanly while the study lives (a replica that drains, a connection's maximum age) is
followed by another at once. The watch is over when the study has ended and every event up to the study's own
cursor was passed on. The transports drive it; only they sleep and open streams.

A scheduler sends a message without events only if there are none between the requested cursor and the study's own:
the last ones were deleted by age. Such a message therefore moves the position to the study's cursor.
"""

import logging
from collections.abc import Callable, Iterable

from headrace.client import convert, convert_events
from headrace.client.events import Event, Update
from headrace.client.model import StudyInfo
from headrace.client.names import study_name
from headrace.errors import HeadraceError
from headrace.v1 import study_pb2

OnBreak = Callable[[HeadraceError], None]
"""Called at every broken connection, before the next one is tried."""

GIVE_UP_AFTER_S = 300.0
"""How long a watch tries to reach a scheduler that it had reached before."""

WARN_AFTER_S = 5.0
"""How long a watch stays silent about that if there is no `on_break`."""

logger = logging.getLogger("headrace.client")


class WatchPosition:
    """The position of a watch; with `until`, of one that is over at that cursor, whether the study has ended or not."""

    def __init__(
        self, study: str, after: int, *, until: int | None = None, give_up_after_s: float | None = None
    ) -> None:
        self.cursor = after
        self.until = until
        self.done = self.enough
        self._give_up_after_s = GIVE_UP_AFTER_S if give_up_after_s is None else give_up_after_s
        self._study, self._name = study, study_name(study)
        self._silent_since: float | None = None
        self._delay_s = 0.1
        self._warned = False

    @property
    def enough(self) -> bool:
        """Whether `until` is reached: no further message is needed."""
        return self.until is not None and self.cursor >= self.until

    def request(self) -> study_pb2.WatchStudyRequest:
        """The request for the events after the last one that was passed on."""
        return study_pb2.WatchStudyRequest(name=self._name, after_cursor=self.cursor)

    def accept(self, response: study_pb2.WatchStudyResponse) -> Update | None:
        """The new events of a response; None if it only repeats earlier ones, and the watch is not over."""
        self._silent_since, self._delay_s, self._warned = None, 0.1, False
        study = convert.study(response.study)
        new = tuple(self._new(convert_events.event(e, order=study.spec.space) for e in response.events))
        if not response.events:
            self.cursor = max(self.cursor, study.cursor)
        self._conclude(study)
        if response.events and not new and not self.done:
            return None
        return Update(events=new, study=study)

    def missed(self, study: StudyInfo) -> bool:
        """After a stream that ended cleanly: whether another one is needed."""
        self._conclude(study)
        return not self.done

    def delay_s(self, error: HeadraceError, now_s: float, on_break: OnBreak | None) -> float:
        """How long to wait before the next stream; raises `error` if retrying is pointless. Calls `on_break`;
        without one, writes to the log (on stderr by default) after a long silence.
        """
        if self._silent_since is None:
            self._silent_since = now_s
        if not error.retryable or now_s - self._silent_since > self._give_up_after_s:
            raise error
        if on_break is not None:
            on_break(error)
        elif not self._warned and now_s - self._silent_since >= WARN_AFTER_S:
            self._warned = True
            logger.warning(
                "%s Still waiting for study %s; giving up after %g s.",
                error.message,
                self._study,
                self._give_up_after_s,
            )
        delay, self._delay_s = self._delay_s, min(2.0, self._delay_s * 2)
        return delay

    def _new(self, events: Iterable[Event]) -> Iterable[Event]:
        for event in events:
            if event.cursor > self.cursor:
                self.cursor = event.cursor
                if self.until is None or event.cursor <= self.until:
                    yield event

    def _conclude(self, study: StudyInfo) -> None:
        self.done = self.enough or (study.state.ended and study.cursor <= self.cursor)
