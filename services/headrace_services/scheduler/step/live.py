"""Copies of the rows of trials on workers, kept between the steps of a study on one replica.

The study's cursor is their version: every step that writes anything appends an event. So the copies are good while the
cursor is where this replica's last step put it, which the lock on the study's row tells; when another replica has
moved it they are dropped and read again. A trial is kept while it holds a lease, so memory follows the slots at work;
so are the few that could start at once, which a step that places something would have to look for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace_services.scheduler.records import Lease, Slot, Trial

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
    count: int | None = None
    """How many live leases the study has, the ones that are not kept here too; None where nobody has counted."""

    def clear(self) -> None:
        """Forget everything: another replica was at work."""
        self.trials.clear()
        self.leases.clear()
        self.slots.clear()
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
        for number, trial in trials.items():  # a trial that went from one lease to the next in one step
            if trial.lease_id in self.leases:
                self.trials[number] = trial
        if self.waiting is not None:
            self._keep_waiting(self.waiting, trials)
        self.count = count

    def _keep_waiting(self, waiting: dict[int, Trial], trials: dict[int, Trial]) -> None:
        for number, trial in trials.items():
            if trial.runnable:
                waiting[number] = trial
            else:
                waiting.pop(number, None)
        if len(waiting) > MOST_WAITING:
            self.waiting = None
