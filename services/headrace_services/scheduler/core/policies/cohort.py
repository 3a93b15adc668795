"""One cohort of synchronous successive halving: trials that wait for each other at every rung.

- The members of rung 0 are the trials that joined; those of rung k+1 are the trials that were promoted from rung
  k.
- A rung is *full* when no further member can reach it: rung 0 once the cohort has its size, or there are no more
  trials; rung k+1 once rung k has given out its places, or has no trial left to give one to.
- A full rung is *decided* once each member has a result there, or has ended without one.
- Of n members ⌊n/η⌋ continue, and at least one: a cohort that lost trials, or was never full, still has a winner.
  A place goes to the best waiting trial. A trial that drops out while it waits leaves its place to the next best.
- If all trials promoted from a rung are *lost*, the next best gets a last chance, once nothing else is left to run
  in the study. A trial is lost if it has no finite value at a rung, or ends before the last one. It is not lost if
  its program exited on its own, as all programs might. (Decision 0143.)

All this depends only on which trials joined, their results, and which were promoted or ended, not on the order in
which that became known. Only ties go by arrival.
"""

from dataclasses import dataclass, field

from headrace_services.scheduler.core.policies.protocol import RungResult
from headrace_services.scheduler.core.policies.ranking import Ranking


@dataclass(slots=True)
class CohortRung:
    """A rung of one cohort."""

    ranking: Ranking
    members: set[int] = field(default_factory=set)
    without_result: set[int] = field(default_factory=set)
    """Members that have ended and were never recorded here."""
    past: set[int] = field(default_factory=set)
    in_hope: int = 0
    """How many of the trials promoted from it are not lost."""

    @property
    def complete(self) -> bool:
        """Whether all members so far have settled."""
        return self.settled == len(self.members)

    @property
    def settled(self) -> int:
        """How many members have a result, or will never have one."""
        return len(self.ranking) + len(self.without_result)

    @property
    def waiting(self) -> bool:
        """Whether some trial could be given a place."""
        return self.ranking.best_waiting() is not None


class Cohort:
    """The state of one cohort. Trials are numbers; the caller knows which belong to it."""

    def __init__(self, *, bracket: int, index: int, size: int, rungs: int, eta: int, maximize: bool) -> None:
        self.bracket = bracket
        self.index = index
        self.size = size
        self._eta = eta
        self.rungs = [CohortRung(ranking=Ranking(maximize=maximize)) for _ in range(rungs)]
        self._over: set[int] = set()
        self._lost: set[int] = set()
        self._finished_early: set[int] = set()
        self._top: dict[int, int] = {}

    @property
    def has_room(self) -> bool:
        """Whether another trial can join."""
        return len(self.rungs[0].members) < self.size

    def join(self, trial: int) -> None:
        """Add a trial."""
        self.rungs[0].members.add(trial)
        if trial in self._over:
            self.rungs[0].without_result.add(trial)

    def record(self, result: RungResult) -> None:
        """Enter a result; a ValueError means that the trial is already there, or above."""
        trial, rung = result.trial, result.rung
        last = self._top.get(trial, -1)
        if last >= rung:
            raise ValueError(f"trial {trial} is at rung {last} already")
        for lower in range(max(last, 0), rung):
            self._pass(trial, lower)
        place = self.rungs[rung]
        place.members.add(trial)
        place.without_result.discard(trial)
        place.ranking.add(result, waits=trial not in self._over)
        self._top[trial] = rung
        if not result.finite:
            self._lose(trial)

    def promoted(self, trial: int, rung: int) -> None:
        """Record that a trial was promoted from a rung where it has a result."""
        self.rungs[rung].ranking.result(trial)
        self._pass(trial, rung)

    def finished_early(self, trial: int) -> None:
        """Record that a member's program ended by itself."""
        self._finished_early.add(trial)

    def withdraw(self, trial: int) -> None:
        """Record that a member has ended."""
        self._over.add(trial)
        if trial not in self._finished_early and self._top.get(trial) != len(self.rungs) - 1:
            self._lose(trial)
        for rung in self.rungs:
            if trial in rung.ranking:
                rung.ranking.leave(trial)
            elif trial in rung.members:
                rung.without_result.add(trial)

    def full(self, rung: int, *, more: bool) -> bool:
        """Whether no further trial can reach the rung."""
        return rung < self._full_rungs(more=more)

    def decided(self, rung: int, *, more: bool) -> bool:
        """Whether the rung is full and all its members have settled."""
        return self.rungs[rung].complete and self.full(rung, more=more)

    def places(self, members: int) -> int:
        """How many of this many members continue."""
        return max(1, members // self._eta) if members else 0

    def free_places(self, rung: int, *, more: bool) -> int:
        """How many trials may be promoted from the rung now; the top rung has no places."""
        if rung == len(self.rungs) - 1 or not self.decided(rung, more=more):
            return 0
        place = self.rungs[rung]
        return max(0, self.places(len(place.members)) - len(place.past))

    def giving(self, *, more: bool) -> list[int]:
        """The rungs that have a free place and a trial to give it to."""
        below_top = min(self._full_rungs(more=more), len(self.rungs) - 1)
        return [rung for rung in range(below_top) if self.rungs[rung].complete and not self._given_out(rung)]

    def last_chance(self) -> int | None:
        """The rung from which the best waiting trial may continue, if no trial is in training and all promoted
        ones are lost. None if none waits, or a promoted one completed."""
        waited_at = [rung for rung, place in enumerate(self.rungs) if place.waiting]
        if not waited_at or waited_at[-1] == len(self.rungs) - 1 or self.rungs[waited_at[-1]].in_hope:
            return None
        return waited_at[-1]

    def expected(self, rung: int, *, more: bool) -> int:
        """How many members the rung will have if none drops out."""
        if rung == 0:
            return len(self.rungs[0].members) if not more else max(self.size, len(self.rungs[0].members))
        if self.full(rung, more=more):
            return len(self.rungs[rung].members)
        return max(self.places(self.expected(rung - 1, more=more)), len(self.rungs[rung].members))

    def _full_rungs(self, *, more: bool) -> int:
        """How many rungs, from the lowest, are full."""
        if more and self.has_room:
            return 0
        for rung, place in enumerate(self.rungs):
            if not (place.complete and self._given_out(rung)):
                return rung + 1
        return len(self.rungs)

    def _given_out(self, rung: int) -> bool:
        """Whether a decided rung has given out its places, or has no trial left to give one to."""
        place = self.rungs[rung]
        return not place.waiting or len(place.past) >= self.places(len(place.members))

    def _lose(self, trial: int) -> None:
        """Record that a trial will not reach the last rung with a value."""
        if trial not in self._lost:
            self._lost.add(trial)
            for rung in self.rungs:
                rung.in_hope -= trial in rung.past

    def _pass(self, trial: int, rung: int) -> None:
        place = self.rungs[rung]
        if trial in place.past:
            return
        place.past.add(trial)
        place.in_hope += trial not in self._lost
        if trial in place.ranking:
            place.ranking.leave(trial)
        else:
            place.members.add(trial)
            place.without_result.add(trial)
        above = self.rungs[rung + 1] if rung + 1 < len(self.rungs) else None
        if above is not None and trial not in above.members:
            above.members.add(trial)
            if trial in self._over:
                above.without_result.add(trial)
