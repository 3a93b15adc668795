"""How long a slot's window will be: a low quantile of its past lengths, so that few windows end earlier than
predicted.

A prediction that is too short wastes idle time. One that is too long lets a trial start a quantum for which the
stage then waits: for the rest of one quantum, because the gate closes at the next point. So the predictor leans
towards short ones, as far as its caller asks (`quantile`). If the job says that it has changed, the predictor
forgets everything. If only its windows or its computing time look different, it uses the latest ones: on a busy
machine they do so all the time, and a predictor that forgot then would never predict anything.
"""

from collections import deque
from typing import Final

HISTORY: Final = 50
"""How many windows of a slot are kept."""
LEAST: Final = 5
"""How many windows of a slot are needed before anything is predicted."""
QUANTILE: Final = 0.05
"""The quantile of the history that is predicted, unless the caller asks for another."""
LATEST: Final = 3
"""No prediction exceeds the same quantile of this many latest windows: a job that gets faster is followed at once."""
SHORT: Final = 0.75
"""A window shorter than this share of its prediction contradicts it; two in a row make the slot learn again."""
LATE: Final = 0.95
"""The quantile of a slot's starts that counts as late. A window that starts later still is shorter by as much."""
CHANGED: Final = 0.25
"""If the stage's computing time changes by this share, only its latest windows are used."""


def low_quantile(values: "deque[int]", quantile: float) -> int:
    """Returns a quantile by the lower order statistic, at most that of the latest values; for quantiles below one
    half."""
    ordered, latest = sorted(values), sorted(list(values)[-LATEST:])
    return min(ordered[int(quantile * (len(ordered) - 1))], latest[int(quantile * len(latest))])


class Predictor:
    """The past windows of one stage. All times are in nanoseconds."""

    def __init__(self) -> None:
        """Starts without history."""
        self._lengths: dict[int, deque[int]] = {}
        self._lags: dict[int, deque[int]] = {}
        self._begins: dict[int, deque[int]] = {}
        self._contradicted: dict[int, int] = {}
        self._computing: deque[int] = deque(maxlen=HISTORY)
        self._generation = -1
        self.relearnt = 0
        """How often everything was forgotten, or everything but the latest windows."""

    def observe(self, *, slot: int, length: int, generation: int, lag: int | None = None) -> None:
        """Records the length of a window that ended.

        Args:
            slot: which one.
            length: from its start to its end.
            generation: the rank's count of changes of micro-batches or shapes. A new one makes the predictor
                forget; an older one is a late message and changes nothing.
            lag: from the neighbour's hint to the window's end, if there was a hint.
        """
        if generation < self._generation:
            return
        if generation > self._generation:
            self.forget()
            self._generation = generation
        predicted = self.length(slot)
        if predicted is not None:
            short = length < SHORT * predicted
            self._contradicted[slot] = self._contradicted.get(slot, 0) + 1 if short else 0
            if self._contradicted[slot] >= 2:
                self._contradicted[slot] = 0
                self._lengths[slot].clear()
                self._lags.pop(slot, None)
        self._lengths.setdefault(slot, deque(maxlen=HISTORY)).append(length)
        if lag is not None:
            self._lags.setdefault(slot, deque(maxlen=HISTORY)).append(lag)

    def observe_begin(self, *, slot: int, after: int, generation: int) -> None:
        """Records how long after its step's start a window started; one of an older generation changes nothing."""
        if generation == self._generation:
            self._begins.setdefault(slot, deque(maxlen=HISTORY)).append(after)

    def observe_computing(self, length: int) -> None:
        """Records the time that a step of the stage computed, without its windows."""
        if len(self._computing) >= LEAST:
            usual = sorted(self._computing)[len(self._computing) // 2]
            latest = sorted([*list(self._computing)[1 - LEAST :], length])[LEAST // 2]
            if abs(latest - usual) > CHANGED * usual:
                self._go_by_the_latest()
        self._computing.append(length)

    def _go_by_the_latest(self) -> None:
        self.relearnt += 1
        self._computing.clear()
        for kept in (*self._lengths.values(), *self._lags.values(), *self._begins.values()):
            while len(kept) > LEAST:
                kept.popleft()

    def forget(self) -> None:
        """Forgets every window: the job has changed."""
        if self._lengths:
            self.relearnt += 1
        for kept in (self._lengths, self._lags, self._begins, self._contradicted, self._computing):
            kept.clear()

    def length(self, slot: int, quantile: float = QUANTILE) -> int | None:
        """Returns how long a slot's window will last at least; None while that is unknown."""
        seen = self._lengths.get(slot)
        return None if seen is None or len(seen) < LEAST else low_quantile(seen, quantile)

    def latest_begin(self, slot: int) -> int | None:
        """Returns how long after its step's start a slot's window starts at the latest; None while that is
        unknown."""
        seen = self._begins.get(slot)
        return None if seen is None or len(seen) < LEAST else sorted(seen)[int(LATE * (len(seen) - 1))]

    def end_after_hint(self, slot: int, hinted: int, quantile: float = QUANTILE) -> int | None:
        """Returns when a window will end whose neighbour started the awaited pass at `hinted`; None while that is
        unknown."""
        seen = self._lags.get(slot)
        return None if seen is None or len(seen) < LEAST else hinted + low_quantile(seen, quantile)

    def table(self, *, shortest: int, quantile: float = QUANTILE) -> dict[int, int]:
        """Returns the length of each slot that is known and at least `shortest`; shorter windows are skipped."""
        known = {
            slot: self.length(slot, quantile) for slot in self._lengths if self.latest_begin(slot) is not None
        }
        return {slot: length for slot, length in known.items() if length is not None and length >= shortest}

    @property
    def generation(self) -> int:
        """The table's generation; −1 before the first window."""
        return self._generation
