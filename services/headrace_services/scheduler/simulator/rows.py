"""A study's rows in memory: what the database would hold, for a production cycle to work on.

A cycle gets copies and returns what changed, as over Postgres (`store.load`, `store.apply`). Rows that no later
cycle can ask for (leases that are over, stored reports) are not kept, so memory grows only with the number of
trials.
"""

from datetime import UTC, datetime

from msgspec.structs import replace
from sortedcontainers import SortedList

from headrace.spec import StudySpec
from headrace.spec.names import DEFAULT_PROJECT
from headrace_services.scheduler.core.capacity import Profile
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.lifecycle import State, StudyState
from headrace_services.scheduler.core.placement.shares import Share
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.records import Bundle, Event, Grant, Lease, Study, Trial
from headrace_services.scheduler.simulator.cluster_rows import ClusterRows, OverCommitError

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""The date of everything in a simulated study: its creation, and all that its cycles do. The cycles' own clock
starts from 0. A study in the user's process sets the time (`clock`)."""


class StudyRows:
    """One study: its row, its trials, its live leases, and its policy with the results folded in."""

    def __init__(
        self,
        spec: StudySpec,
        fold: Fold,
        *,
        name: str,
        project: str = DEFAULT_PROJECT,
        number: int = 1,
        created: datetime = EPOCH,
        planned: int | None = None,
    ) -> None:
        self.study = Study(
            id=number,
            uid=f"sim{number}",
            name=name,
            project=project,
            spec=spec,
            state=StudyState.ACTIVE,
            detail="",
            cursor=0,
            next_number=0,
            sampled=0,
            reports=0,
            metric_seen=False,
            early_failures=0,
            create_time=created,
            end_time=None,
            planned=fold.sampled_limit if planned is None else planned,
            now=created,
        )
        self.fold = fold
        self.trials: dict[int, Trial] = {}
        self.leases: dict[str, Lease] = {}
        self.events: list[Event] | None = None
        """The event log, if it was requested."""
        self.profiles: dict[tuple[str, str], Profile] = {}
        """Its bundle profiles, by kind of device and key."""
        self._grants: dict[str, Grant] = {}
        """The live grants, each with the number of its live leases."""
        self._clients = 0
        """How many live leases belong to clients, which hold no grant."""
        self._runnable: SortedList[tuple[bool, int]] = SortedList()

    def clock(self, now: datetime) -> None:
        """Set the time of everything that the next cycle does."""
        self.study = replace(self.study, now=now)

    def at(self, now_s: float, cluster: ClusterRows) -> Study:
        """The study's row as a cycle reads it."""
        leaving = {
            grant_id: said
            for grant_id, (study_id, said) in cluster.leaving.items()
            if study_id == self.study.id
        }
        return replace(self.study, now_s=now_s, leaving=leaving)

    def share(self) -> Share:
        """The study as others see it."""
        return Share.of(self.study)

    def runnable(self, limit: int) -> list[Trial]:
        """Trials that should be on a worker but are not: interrupted ones first, then by number."""
        return [self.trials[number] for _, number in self._runnable[:limit]]

    @property
    def pending(self) -> bool:
        """Whether a trial should be on a worker but is not."""
        return bool(self._runnable)

    @property
    def unstarted(self) -> int:
        """How many trials were never placed."""
        return sum(fresh for fresh, _ in self._runnable)

    def lease(self, lease_id: str) -> Lease | None:
        """A live lease, with the number of live leases that its grant has now."""
        lease = self.leases.get(lease_id)
        if lease is None or lease.grant is None:
            return lease
        return replace(lease, grant=self._grants[lease.grant.id])

    @property
    def live_grants(self) -> int:
        """How many grants the study has, where a client's lease counts as one."""
        return len(self._grants) + self._clients

    def members(self, grant_id: str) -> int:
        """How many live leases a grant has; 0 if it is over or belongs to another study."""
        grant = self._grants.get(grant_id)
        return grant.leases if grant else 0

    @property
    def has_open_seats(self) -> bool:
        """Whether a bundle could accept a trial."""
        return any(grant.leases < grant.seats and not grant.closed for grant in self._grants.values())

    def open_bundles(self, cluster: ClusterRows, most: int) -> list[Bundle]:
        """Bundles with open seats, those with the fewest members first."""
        if not most:
            return []
        open_ = [g for g in self._grants.values() if g.leases < g.seats and not g.closed]
        open_.sort(key=lambda grant: (grant.leases, grant.id))
        return [Bundle(grant=grant, slots=cluster.of_grant(grant)) for grant in open_[:most]]

    def unfinished(self) -> list[Trial]:
        """Every trial that is not over."""
        return [trial for trial in self.trials.values() if trial.state is not State.TERMINATED]

    def write(self, plan: Plan, cluster: ClusterRows) -> None:
        """Apply the changes of a cycle."""
        changes = plan.changes
        latest = {trial.number: trial for trial in changes.created}
        latest.update((change.after.number, change.after) for change in changes.trials)
        for number, after in latest.items():
            before = self.trials.get(number)
            if before is not None and before.runnable:
                self._runnable.remove((before.attempt == 0, number))
            if after.runnable:
                self._runnable.add((after.attempt == 0, number))
            self.trials[number] = after
        for lease in (*changes.updated.values(), *changes.granted.values()):
            if lease.live:
                if lease.id not in self.leases:
                    self._count(lease.grant, 1)
                self.leases[lease.id] = lease
            elif self.leases.pop(lease.id, None) is not None:
                self._count(lease.grant, -1)
        self.profiles.update(changes.profiles)
        for grant_id in changes.closed_grants:
            self._grants[grant_id] = replace(self._grants[grant_id], closed=True)
        for grant_id in changes.ended_grants:
            if self._grants.pop(grant_id).leases:
                raise OverCommitError(f"grant {grant_id} has ended before its leases")
            cluster.leaving.pop(grant_id, None)
        cluster.write(changes)
        if self.events is not None:
            self.events.extend(changes.events)
        self.study = plan.study

    def _count(self, grant: Grant | None, by: int) -> None:
        """Count one more or one fewer lease of a grant, or of a client. The rows guard its seats as the database
        does."""
        if grant is None:
            self._clients += by
            return
        known = self._grants.get(grant.id)
        counted = replace(known or grant, leases=by + (known.leases if known else 0))
        if counted.leases > counted.seats:
            raise OverCommitError(f"grant {grant.id} has {counted.seats} seats")
        self._grants[grant.id] = counted
