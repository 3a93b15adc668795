"""The plain rule that is hard to beat: every configuration is evaluated once, and the best k continue to the end."""

import math

from peer_loop import Make, Peer, Task


class BestK(Peer):
    """Pauses every trial at the first evaluation, until all have reached it."""

    def __init__(self, task: Task, *, share: float) -> None:
        self._sign = -1.0 if task.maximize else 1.0
        self._kept = max(1, round(share * task.trials))
        self._out: set[int] = set()
        self._found: list[tuple[float, int]] = []
        self._chosen: list[int] | None = None

    def begins(self, number: int) -> None:
        self._out.add(number)

    def goes_on(self, number: int, at: int, value: float, *, over: bool) -> bool:
        if at > 1:
            return True
        self._out.discard(number)
        if math.isfinite(value) and not over:
            self._found.append((self._sign * value, number))
        return False

    def resumes(self, *, more: bool) -> int | None:
        if more or self._out:
            return None
        if self._chosen is None:
            self._chosen = [number for _, number in sorted(self._found)[: self._kept]]
        return self._chosen.pop(0) if self._chosen else None


def tenth(task: Task) -> Peer:
    """The best tenth continues."""
    return BestK(task, share=0.1)


PEERS: dict[str, Make] = {"best 10% after one": tenth}
