"""Copies of the rows of trials at work, kept between the steps of a study on one replica.

The study's cursor is their version: every step that writes anything appends an event. So the copies are good while the
cursor is where this replica's last step put it, which the lock on the study's row tells; when another replica has
moved it they are dropped and read again. A trial is kept while it holds a lease, so memory follows the slots at work;
so are the few that could start at once, which a step that places something would have to look for.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as replace_entry

from headrace_services.scheduler.records import Lease, Slot, Trial
from headrace_services.scheduler.store.trials import RungView

MOST_WAITING = 512


@dataclass(slots=True)
class LiveRows:
    """What the last step here left behind."""

    trials: dict[int, Trial] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    slots: dict[str, tuple[Slot, ...]] = field(default_factory=dict)
    """By lease. Good for who holds what; whether a slot can be used again is for the rows to say."""
    waiting: dict[int, Trial] | None = None
    """Every trial that could start now; None where they were not read, or are too many to keep."""
    rungs: dict[int, tuple[RungView, ...]] = field(default_factory=dict)
    """Of trials in users' own loops, those entries that were made while they were kept here, lowest first."""
    count: int | None = None
    """How many live leases the study has, the ones that are not kept here too; None where nobody has counted."""

    def clear(self) -> None:
        """Forget everything: another replica was at work."""
        self.trials.clear()
        self.leases.clear()
        self.slots.clear()
        self.rungs.clear()
        self.waiting = None
        self.count = None

    def keep(
        self,
        leases: Iterable[Lease],
        trials: dict[int, Trial],
        slots: dict[str, tuple[Slot, ...]],
        count: int | None,
    ) -> None:
        """Take over what a step has touched, as it left it."""
        for lease in leases:
            if lease.live and lease.number in trials:
                self.leases[lease.id] = lease
                self.trials[lease.number] = trials[lease.number]
                self.slots[lease.id] = slots.get(lease.id, ())
            elif self.leases.pop(lease.id, None) is not None:
                self.slots.pop(lease.id, None)
                self.trials.pop(lease.number, None)
                self.rungs.pop(lease.number, None)
        for number, trial in trials.items():  # a trial that went from one lease to the next in one step
            if trial.lease_id in self.leases:
                self.trials[number] = trial
        if self.waiting is not None:
            self._keep_waiting(self.waiting, trials)
        self.count = count

    def knows_rungs(self, number: int) -> bool:
        """Whether all entries of a trial are here."""
        trial = self.trials.get(number)
        return trial is not None and len(self.rungs.get(number, ())) == trial.rungs

    def keep_rungs(self, made: Iterable[RungView], passed: Collection[tuple[int, int]]) -> None:
        """Take over the entries that a step has made, and note which, by trial and rung, their trials went past."""
        for view in made:
            if view.entry.number in self.trials:
                self.rungs[view.entry.number] = (*self.rungs.get(view.entry.number, ()), view)
        for number in {number for number, _ in passed} & self.rungs.keys():
            self.rungs[number] = tuple(
                replace(view, entry=replace_entry(view.entry, promoted=True))
                if (number, view.entry.rung) in passed
                else view
                for view in self.rungs[number]
            )

    def _keep_waiting(self, waiting: dict[int, Trial], trials: dict[int, Trial]) -> None:
        for number, trial in trials.items():
            if trial.runnable:
                waiting[number] = trial
            else:
                waiting.pop(number, None)
        if len(waiting) > MOST_WAITING:
            self.waiting = None
