"""Whether each member of a bundle would fail as the bundle did: its function is tried with single members.

A bundle that fails does not name a culprit. The scheduler finds it with smaller and smaller bundles, which takes
minutes if the program itself is wrong. If no member has reported yet, nothing is lost by trying here: the
function is called with each member alone, until it would report. If every member meets the bundle's error, at
the same line, the program is to blame. The first member that does not ends the attempt.
"""

import gc
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from headrace.trial import rng
from headrace.trial.bundle import Bundle
from headrace.trial.bundle_crew import Crew
from headrace.trial.bundle_runtime import Answer, Attached, Ended, Said, Seat

logger = logging.getLogger("headrace.trial")
LEAST_S: Final = 20.0
"""The least time for trying members, in addition to twice the time that the bundle took to fail."""
_Place = tuple[str, str, int]
"""An error's type, and the file and line that raised it. Its message is left out, as it may contain values."""


class _PassedError(BaseException):
    """The member reached its first report. A function's own `except Exception` does not catch it."""


class _Stage:
    """A runtime for one member, which is left as soon as the member sends something."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def attach(self) -> Attached:
        """The member."""
        return Attached(members=(self._seat,), seats=1)

    def turn(self, said: Said) -> Answer:
        """Ends the rehearsal."""
        raise _PassedError(said)

    def finish(self, end: Ended) -> None:
        """Does nothing: nobody needs to know."""


def each_fails(
    function: Callable[[Bundle], object], crew: Crew, error: Exception, *, elapsed_s: float
) -> bool:
    """Whether every member alone meets the same error as the bundle did after `elapsed_s`.

    False if that cannot be tried without loss, or not in about the time that the bundle took.
    """
    seats = [seat for member in crew.live if (seat := member.fresh_seat()) is not None]
    if not crew.charged or crew.has_reported or len(seats) < max(2, len(crew.live)):
        return False
    traceback.print_exception(error, file=sys.stderr)  # if this process is killed now, its log has the error
    logger.warning("headrace: trying the bundle's members one by one, to see which of them fail")
    place = _place(error)
    traceback.clear_frames(error.__traceback__)  # they hold the group's memory, as the crew does
    crew.build_anew()
    gc.collect()
    try:
        with _at_most(LEAST_S + 2 * elapsed_s):
            return all(_fails_at(function, seat) == place for seat in seats)
    except _PassedError:  # the time has run out between two members
        return False


def _fails_at(function: Callable[[Bundle], object], seat: Seat) -> _Place | None:
    """Where the function fails with this member alone; None if it reaches a report or its end, or exits."""
    stage = _Stage(seat)
    try:
        rng.seed_all(seat.assignment.seed)
        function(Bundle(Crew(stage, stage.attach())))
    except KeyboardInterrupt:
        raise
    except Exception as error:  # noqa: BLE001 - the user's; it is compared
        place = _place(error)
        traceback.clear_frames(error.__traceback__)
        return place
    except BaseException:  # noqa: BLE001 - it passed, or the program exits
        return None
    return None


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Ends the block with _PassedError after a time limit. There is no limit if this thread cannot receive
    signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> NoReturn:
        raise _PassedError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _place(error: Exception) -> _Place:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__qualname__, last.filename, last.lineno or 0
