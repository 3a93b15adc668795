"""How often processes ran several trials, and why they ended, for people.

Users of all projects see it, so it names nothing of a program: `headrace why` tells a trial's own project.
"""

from collections import Counter

_KINDS = {
    "trial": "their trials did not succeed",
    "left": "left something behind",
    "state": "changed their own modules",
    "setting": "changed a setting for good",
    "code": "their code has changed",
    "many": "ran many trials",
}
_OTHER = "other reasons"


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
        said = f"{self.again} trials ran in a process that had run another one"
        if self._ended:
            kinds = ", ".join(f"{why} ({count})" for why, count in self._ended.most_common())
            said += f"; processes that ended: {kinds}"
        return said
