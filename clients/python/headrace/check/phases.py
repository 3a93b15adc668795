"""When the script's variables hold values that a fresh start does not have. Pure.

A restore reveals that a variable is reset only while the variable holds something. A dictionary that is filled
in steps 7 to 9 and cleared in step 10 is empty at any other step, and a restore there changes nothing. So the
straight run checks each step, and `plan.py` plans a restore in each phase.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.check.snapshot import Phase

_MOST = 8
"""How many phases of a variable are kept: the most informative ones."""


class Phases:
    """Records the variables at each report. A value is anything that is equal if the variable is."""

    def __init__(self) -> None:
        self._fresh: Mapping[str, Hashable] = {}
        self._lives: dict[str, _Life] = {}
        self._step = 0

    def begin(self, values: Mapping[str, Hashable]) -> None:
        """Take the values of a fresh start. Of several calls, the last one before a report counts."""
        if not self._step:
            self._fresh = values

    def saw(self, step: int, values: Mapping[str, Hashable]) -> None:
        """Take the values at the report of this step."""
        for name in self._lives.keys() | values.keys():
            life = self._lives.get(name)
            if life is None:
                life = self._lives[name] = _Life(fresh=self._fresh.get(name), value=self._fresh.get(name))
            life.saw(step, self._step, values.get(name))
        self._step = step

    def found(self) -> tuple[Phase, ...]:
        """The phases of each variable, the most informative first: those in which it changes, then the longest.

        Of variables that change at the same times, one represents all.
        """
        alike: dict[tuple[tuple[int, int], ...], tuple[Phase, ...]] = {}
        for name in sorted(self._lives):
            phases = sorted(self._lives[name].phases(name, self._step), key=_telling)[:_MOST]
            if phases:
                alike.setdefault(tuple((phase.first, phase.last) for phase in phases), tuple(phases))
        return tuple(phase for phases in alike.values() for phase in phases)


@dataclass(slots=True)
class _Life:
    """The history of one variable. None is the value of a variable that does not exist."""

    fresh: Hashable
    value: Hashable
    # The steps of the phases so far, and whether the variable changes in them.
    _done: list[tuple[int, int, bool]] = field(default_factory=list)
    # The step since which it has its value; before the first report it had the fresh one.
    _since: int = 0
    _stays: bool = True
    # The first and the last step of the stretch in which it changed with every report.
    _changing: tuple[int, int] | None = None

    def saw(self, step: int, before: int, value: Hashable) -> None:
        if value == self.value:
            self._stays = True
            return
        self._close(before)
        self.value, self._since, self._stays = value, step, False

    def phases(self, name: str, last: int) -> Iterator[Phase]:
        self._close(last)
        self._flush()
        for first, end, changes in self._done:
            yield Phase(variable=name, first=first, last=end, changes=changes)

    def _close(self, last: int) -> None:
        """End the current value's stretch at a step."""
        is_fresh = self.value == self.fresh
        if not (self._stays or is_fresh):
            first = self._changing[0] if self._changing is not None else self._since
            self._changing = first, last
            return
        self._flush()
        if not is_fresh:
            self._done.append((self._since, last, False))

    def _flush(self) -> None:
        if self._changing is not None:
            self._done.append((*self._changing, True))
            self._changing = None


def _telling(phase: Phase) -> tuple[bool, int, int]:
    return not phase.changes, phase.first - phase.last, phase.first
