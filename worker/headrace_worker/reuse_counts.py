"""How often processes ran several trials, and why they ended, for people."""

from collections import Counter

_SHOWN = 3
_DISTINCT = 64


class Counts:
    """Since the daemon started."""

    def __init__(self) -> None:
        self.again = 0
        """The trials that ran in a process that had run another one."""
        self._ended: Counter[str] = Counter()

    def ended(self, left_behind: str) -> None:
        """A process ended because of what its trial left behind; empty: for a reason that the trial's end tells."""
        if left_behind in self._ended or len(self._ended) < _DISTINCT:
            self._ended[left_behind] += 1

    def in_words(self) -> str:
        """All of it in one line; empty if there is nothing to say."""
        if not self.again and not self._ended:
            return ""
        said = f"{self.again} trials ran in a process that had run another one"
        ended = [
            (why or "its trial did not succeed", count) for why, count in self._ended.most_common(_SHOWN)
        ]
        if ended:
            said += f"; {self._ended.total()} processes ended: " + ", ".join(
                f"{why} ({count})" if count > 1 else why for why, count in ended
            )
        return said
