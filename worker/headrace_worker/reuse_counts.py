"""How often processes ran several trials, and why they ended, for people.

Users of all projects see it, so it names nothing of a program: `headrace why` tells a trial's own project.
"""

from collections import Counter

_KINDS = {
    "trial": "the trial failed, or its lease ended",
    "left": "the trial left something behind",
    "state": "the trial changed its own modules",
    "setting": "the trial changed a setting for good",
    "code": "the code changed",
    "many": "it had run many trials",
}
_OTHER = "another reason"


class Counts:
    """Since the daemon started."""

    def __init__(self) -> None:
        self.again = 0
        """The trials that ran in a process that had run another one."""
        self._ended: Counter[str] = Counter()

    def ended(self, kind: str) -> None:
        """A process ran no other trial. `trial`: for a reason that the trial's own end tells."""
        self._ended[_KINDS.get(kind, _OTHER)] += 1

    def in_words(self) -> str:
        """All of it in one line; empty if there is nothing to say."""
        if not self.again and not self._ended:
            return ""
        said = f"{self.again} {'trial' if self.again == 1 else 'trials'} ran in a reused process"
        if self._ended:
            kinds = ", ".join(f"{why} ({count})" for why, count in self._ended.most_common())
            said += f"; processes ended because: {kinds}"
        return said
