"""The history of a study in process, as far as users look at it afterwards: reports, rungs, ends."""

from collections import defaultdict
from datetime import datetime

from msgspec.structs import replace

from headrace.client.model import Report
from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.records import RungView


class Kept:
    """The history of a study."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.rungs: defaultdict[int, list[RungView]] = defaultdict(list)
        """By trial, lowest rung first."""
        self.ended: datetime | None = None
        """When the study ended."""
        self._over: list[int] = []

    def record(self, plan: Plan, now: datetime) -> None:
        """Add the changes of a cycle."""
        changes = plan.changes
        self.reports += [
            Report(
                trial=report.number,
                attempt=report.attempt,
                sequence=report.sequence,
                step=report.step,
                metrics=report.metrics,
                time=now,
            )
            for report in changes.reports
        ]
        for recorded in changes.rungs:
            self.rungs[recorded.entry.number].append(RungView(entry=recorded.entry, time=now))
        for past in changes.promotions:
            at = self.rungs[past.number]
            at[past.rung] = replace(at[past.rung], entry=replace(at[past.rung].entry, promoted=True))
        self._over += [
            change.after.number
            for change in changes.trials
            if change.after.state is State.TERMINATED
            and change.before.state is not State.TERMINATED
            and change.after.attempt
        ]
        if self.ended is None and plan.study.state.ended:
            self.ended = now

    def take_ended(self) -> list[int]:
        """The trials that ran and have ended since the last call."""
        over, self._over = self._over, []
        return over
