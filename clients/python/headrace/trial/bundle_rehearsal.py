"""Whether each member of a bundle would fail as the bundle did: its function is tried with single members.

A bundle that fails names no culprit. The scheduler finds one by smaller and smaller bundles, which takes minutes where
the program itself is wrong. Where no member has reported yet, nothing is lost by trying here: the function is called
with the first member alone and with the last one alone, until they report. Where both meet the error that the bundle
met, at the same line, it is the program's.
"""

import logging
import traceback
from collections.abc import Callable

from headrace.trial import rng
from headrace.trial.bundle import Bundle
from headrace.trial.bundle_crew import Crew
from headrace.trial.bundle_runtime import Answer, Attached, Ended, Said, Seat

logger = logging.getLogger("headrace.trial")
_Place = tuple[str, str, int]
"""An error's type, and the file and line that raised it. Its words may name values."""


class _PassedError(BaseException):
    """The member came to its first report. A function's own `except Exception` does not take it."""


class _Stage:
    """A runtime for one member, which is left as soon as the member has something to say."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def attach(self) -> Attached:
        """The member."""
        return Attached(members=(self._seat,), seats=1)

    def turn(self, said: Said) -> Answer:
        """Ends the rehearsal."""
        raise _PassedError(said)

    def finish(self, end: Ended) -> None:
        """Nobody is told."""


def each_fails(function: Callable[[Bundle], object], crew: Crew, error: Exception) -> bool:
    """Whether single members meet the same error. False where that cannot be tried without loss."""
    seats = [member.fresh_seat() for member in crew.live]
    if not crew.charged or crew.has_reported or len(seats) < 2:
        return False
    first, last = seats[0], seats[-1]
    if first is None or last is None:
        return False
    logger.warning("headrace: trying single members of the bundle, to see whether each would fail so")
    place = _place(error)
    return all(_fails_at(function, seat) == place for seat in (first, last))


def _fails_at(function: Callable[[Bundle], object], seat: Seat) -> _Place | None:
    """Where the function fails with this member alone; None where it comes to a report, or its end."""
    stage = _Stage(seat)
    rng.seed_all(seat.assignment.seed)
    try:
        function(Bundle(Crew(stage, stage.attach())))
    except _PassedError:
        return None
    except Exception as error:  # noqa: BLE001 - the user's; it is compared
        place = _place(error)
        traceback.clear_frames(error.__traceback__)  # they hold the group's memory
        return place
    return None


def _place(error: Exception) -> _Place:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return type(error).__qualname__, last.filename, last.lineno or 0
