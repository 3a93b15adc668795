"""The event heap: virtual machines that train by their curves, and the production core that decides.

Time stands still while the scheduler decides. An event is something that arrives at the scheduler (a report, a
restored checkpoint, a program's end, a silent worker), or a machine that becomes available again. Each event makes
one cycle of its study, whose orders start and cancel runs. If the cycle leaves slots free, the other studies have
cycles in turn. Then studies that take the best configurations of others look for one.

The rows (`rows`) are authoritative, and the production core changes them. A `Run` is the worker's side of a lease:
when a lease is over, its run's remaining events in the heap are dropped, as the database would call them stale.

Of events at the same time, the one of the last slot comes first. Any rule would do; this one is that of the
original simulation, whose workers are numbered from the end.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from headrace.errors import HeadraceError
from headrace_services.scheduler.core import hours
from headrace_services.scheduler.core.capacity import TurnCost
from headrace_services.scheduler.core.inputs import (
    Accepted,
    Assignment,
    Cancellation,
    ExitedArrived,
    Input,
    LeaseExpired,
    Order,
    Outcome,
    PlaceNow,
    Preemption,
    ReportArrived,
    RestoredArrived,
)
from headrace_services.scheduler.core.lifecycle import Reason, State
from headrace_services.scheduler.core.placement.joints import Link, joint
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.records import Checkpoint, Lease, Trial
from headrace_services.scheduler.simulator import following
from headrace_services.scheduler.simulator.cluster import Machine
from headrace_services.scheduler.simulator.cluster_rows import ClusterRows
from headrace_services.scheduler.simulator.costs import Failures
from headrace_services.scheduler.simulator.cycle import cycle
from headrace_services.scheduler.simulator.record import Segment, Stay
from headrace_services.scheduler.simulator.study import Run, StudySimulation

MOST_TURNS = 16
"""How often a study has a cycle at one moment, while others leave slots to it."""


class SimulationError(HeadraceError):
    """The simulation cannot continue: nothing runs, no event is pending, and the study is not over."""


class Simulation:
    """Studies on a cluster, until all of them have ended."""

    def __init__(
        self,
        machines: Sequence[Machine],
        studies: Sequence[StudySimulation],
        *,
        failures: Failures | None = None,
        progress: Callable[[int], None] | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        """`quotas` are the most slots that the studies of a project may hold at once, by the project's name."""
        self.cluster = ClusterRows(machines, quotas)
        self.studies = tuple(studies)
        self._rows = {study.rows.study.id: study.rows for study in self.studies}
        self._followers = [
            (study, other)
            for study in self.studies
            if (other := following.source_of(study.rows, list(self._rows.values()))) is not None
        ]
        for study, _ in self._followers:
            study.rows.fold.pooled_from = 0
        self.now_s = 0.0
        self._failures = failures or Failures()
        self._progress = progress
        self._heap: list[tuple[float, tuple[int, int], int, Callable[[], None]]] = []
        self._order = count()
        self._waiting = 0
        """Events in the heap that can advance a study; failures of machines cannot."""
        self._down: dict[int, float] = {}

    def run(self) -> None:
        """Run to the end. Raises SimulationError if a study can never end on this cluster."""
        for machine in self.cluster.machines.values():
            self._break_later(machine.id, self._failures.clock(machine.id))
        for study in self.studies:
            self._step(study, PlaceNow())
        self._follow()
        while not all(study.over for study in self.studies):
            if not self._waiting:
                raise SimulationError(
                    self._stuck(), remedy="Simulate machines that a trial fits on, with --types."
                )
            at_s, _, _, happen = heapq.heappop(self._heap)
            for study in self.studies:
                study.record.idle_pending_s += study.idle * (at_s - self.now_s)
            self.now_s = at_s
            happen()
            self._follow()
        for machine_id, since in self._down.items():
            self._count_down(machine_id, since)

    # --- the scheduler's side ------------------------------------------------------------------------

    def _follow(self) -> None:
        """Submit to the studies that take the best configurations of others what they may take now."""
        for study, other in self._followers:
            while (one := following.next_input(study.rows, other)) is not None:
                sampled = study.rows.study.sampled
                self._step(study, one)
                if study.rows.study.sampled == sampled:
                    break  # no slot is idle, or there is no further configuration

    def _step(self, study: StudySimulation, one: Input) -> Outcome | None:
        """One cycle, and those of the studies that it left slots to, in turn."""
        first = self._step_alone(study, one)
        self._wake_waiting(study, first)
        outcome = first.outcomes[0]
        assert not isinstance(outcome, HeadraceError)  # `cycle` raises it
        return outcome

    def _foresee_end(self, study: StudySimulation) -> None:
        """Schedule a cycle for the time when the hours of a study are used up, if its trials run without a break
        until then, and for the time when the trials of a closing study have had their time to leave."""
        closing = study.rows.study.closing
        if closing is not None and study.closed_s != closing.by_s:
            study.closed_s = closing.by_s
            self._at(closing.by_s, (0, 0), partial(self._closed, study, closing.by_s))
        until, before = study.spec.until, study.hours_end_s
        if until is None or until.hours is None:
            return
        study.hours_end_s = hours.ends_s(study.rows.study.standing.progress, until.hours)
        if study.hours_end_s is not None and study.hours_end_s != before:
            self._at(study.hours_end_s, (0, 0), partial(self._hours_end, study, study.hours_end_s))

    def _hours_end(self, study: StudySimulation, end_s: float) -> None:
        if not study.over and study.hours_end_s == end_s:
            self._step(study, PlaceNow())

    def _closed(self, study: StudySimulation, by_s: float) -> None:
        if not study.over and study.closed_s == by_s:
            self._step(study, PlaceNow())

    def _wake_waiting(self, study: StudySimulation, plan: Plan) -> None:
        todo = deque(self._woken(study, plan))
        in_vain, most = 0, MOST_TURNS * len(self.studies)
        # if there are over a thousand free slots, the rest is checked at the next event
        for _ in range(most):
            if not todo:
                return
            other = todo.popleft()
            if not other.over and (self.cluster.anything_free or other.rows.has_open_seats):
                following = self._step_alone(other, PlaceNow())
                in_vain += not following.changes.granted
                todo.extend(one for one in self._woken(other, following) if one not in todo)
        if todo and in_vain == most:
            raise SimulationError(
                f"studies wake each other without end at {self.now_s:g} s: a defect of the scheduler"
            )

    def _woken(self, study: StudySimulation, plan: Plan) -> list[StudySimulation]:
        """The studies that must look for slots after a cycle of a study."""
        named = [other for other in self.studies if other.rows.study.id in plan.effects.wake]
        again = [study] if plan.effects.again else []
        others = [other for other in self.studies if other is not study and other not in named]
        # studies that got slots may no longer go before those with open seats
        if not plan.effects.slots_left:
            granted = bool(plan.changes.granted)
            others = [other for other in others if granted and other.rows.has_open_seats]
        return [*again, *named, *others]

    def _step_alone(self, study: StudySimulation, one: Input) -> Plan:
        plan = cycle(study.rows, self._rows, self.cluster, [one], self.now_s)
        study.record.events += 1
        if self._progress is not None and study.record.events % 64 == 0:
            self._progress(study.record.events)
        for order in plan.effects.orders:
            self._obey(study, order)
        if study.over:
            study.record.end_s = self.now_s
        else:
            self._foresee_end(study)
        study.idle = self._idle(study)
        return plan

    def _idle(self, study: StudySimulation) -> float:
        """How many slots are free although a trial of the study waits for one."""
        rows = study.rows
        if study.over or not self.cluster.anything_free:
            return 0.0
        free = self.cluster.free_milli() / 1000
        if study.spec.max_parallel:
            free = min(free, (study.spec.max_parallel - rows.live_grants) * study.width)
        more = rows.study.sampled < rows.fold.sampled_limit
        waits = free > 0 and (rows.pending or rows.fold.policy.next_promotion(more=more) is not None)
        return free if waits else 0.0

    def _obey(self, study: StudySimulation, order: Order) -> None:
        match order:
            case Assignment():
                self._start(study, order.trial, order.lease)
            case Cancellation():
                run = study.runs.get(order.lease.id)
                if run is not None:
                    self._end(run, "cancelled")
            case Preemption():
                for other in self.studies:
                    run = other.runs.get(order.lease.id)
                    if run is not None:
                        self._leave_soon(run)
            case _:
                raise TypeError(f"{type(order).__name__} has no counterpart in a simulation")

    # --- the workers' side ---------------------------------------------------------------------------

    def _start(self, study: StudySimulation, trial: Trial, lease: Lease) -> None:
        assert lease.worker_id is not None
        machine = self.cluster.machines[lease.worker_id]
        own = study.spec.resources.of(trial.params)
        wider = len(lease.slots) * lease.milli / (own.slots * own.milli)
        apart = joint(self.cluster.held(lease)) not in (Link.UNKNOWN, Link.NVLINK)
        run = Run(
            study=study,
            lease=lease,
            curve=study.curve(trial.number),
            speed=machine.speed
            * machine.duty
            * wider**study.costs.scaling
            * (study.costs.apart if apart else 1.0),
            start_s=self.now_s,
            from_step=lease.step,
            step=lease.step,
            tie=(-machine.id, -min(lease.slots)),
        )
        study.runs[lease.id] = run
        self._crowd(run)
        wait_s = study.costs.start_s
        if lease.resume is not None:
            study.record.resumes += 1
            wait_s += study.costs.read_s
        if lease.resume is not None and wait_s:
            self._at(self.now_s + wait_s, run.tie, lambda: self._restored(run))
        else:
            self._train(run, trial.milestone, self.now_s + wait_s)

    def _restored(self, run: Run) -> None:
        if not run.alive:
            return
        self._step(
            run.study,
            RestoredArrived(
                lease_id=run.lease.id,
                number=run.lease.number,
                attempt=run.lease.attempt,
                sequence=run.next_sequence(),
                read_time_s=run.study.costs.read_s,
            ),
        )
        if run.alive:
            self._train(run, run.study.rows.trials[run.lease.number].milestone, self.now_s)

    def _train(self, run: Run, milestone: int | None, start_s: float) -> None:
        """Train until the report at or past the milestone, or until the program ends by itself."""
        last = run.curve.last_step
        target = run.curve.report_step(run.step, milestone if milestone is not None else run.step + 1)
        if last is not None:
            target = max(min(target, last), run.step)
        speed = run.speed / run.crowd
        trained_s = start_s + run.curve.train_s(run.step, target) / speed
        segment = Segment(
            trial=run.lease.number,
            start_s=start_s,
            trained_s=trained_s,
            from_step=run.step,
            to_step=target,
            speed=speed,
        )
        self._report_at(run, segment, saves=milestone is None or target >= milestone or target == last)

    def _leave_soon(self, run: Run) -> None:
        """The run was asked to leave at its next report, where it saves: the first one on the way that is still to
        come."""
        segment = run.segment
        if not run.alive or segment is None or segment.trained_s <= self.now_s:
            return
        on_the_way = [step for step, _ in run.curve.points(run.step, segment.to_step - 1)]
        for target in on_the_way or range(run.step + 1, segment.to_step):
            trained_s = segment.start_s + run.curve.train_s(run.step, target) / segment.speed
            if trained_s > self.now_s:
                self._report_at(run, replace(segment, to_step=target, trained_s=trained_s), saves=True)
                return

    def _report_at(self, run: Run, segment: Segment, *, saves: bool) -> None:
        """Train a segment and report at its end; the run's earlier plan is dropped."""
        run.segment, run.saves = segment, saves
        run.plan += 1
        plan = run.plan
        wait_s = run.study.costs.write_s if saves else 0.0
        when_s = segment.trained_s + wait_s
        self._at(when_s, run.tie, lambda: self._report(run, segment.to_step, plan, saves=saves))

    def _crowd(self, run: Run) -> None:
        """A run's bundle has gained or lost a member: those that train now are slower, or faster, from now on."""
        members = run.study.members(run.grant_id) if run.study.costs.crowding else []
        crowd = run.study.costs.slowdown(len(members))
        for member in members:
            slower, member.crowd, segment = crowd / member.crowd, crowd, member.segment
            if segment is None or segment.trained_s <= self.now_s or slower == 1.0:
                continue
            since_s = max(self.now_s, segment.start_s)
            trained_s = since_s + (segment.trained_s - since_s) * slower
            all_s = member.curve.train_s(segment.from_step, segment.to_step)
            speed = all_s / (trained_s - segment.start_s)
            self._report_at(member, replace(segment, trained_s=trained_s, speed=speed), saves=member.saves)

    def _report(self, run: Run, at: int, plan: int, *, saves: bool) -> None:
        if not run.alive or plan != run.plan:
            return
        assert run.segment is not None
        study, costs = run.study, run.study.costs
        train_time_s = run.segment.trained_s - run.segment.start_s
        outcome: Outcome | None = None
        if at > run.step:
            value = run.curve.value(at)
            study.record.segments.append(replace(run.segment, value=value))
            saved = Checkpoint(
                uri=f"sim://{run.lease.number}/{at}",
                step=at,
                size_bytes=costs.size_bytes,
                write_time_s=costs.write_s,
            )
            rungs = study.rows.trials[run.lease.number].rungs
            run.step = at
            outcome = self._step(
                study,
                ReportArrived(
                    lease_id=run.lease.id,
                    number=run.lease.number,
                    attempt=run.lease.attempt,
                    sequence=run.next_sequence(),
                    step=at,
                    metrics={} if value is None else {study.spec.objective.metric: value},
                    checkpoint=saved if saves else None,
                    train_time_s=train_time_s,
                    turn=self._turn_cost(run, run.segment, steps=at - run.segment.from_step),
                ),
            )
            trial = study.rows.trials[run.lease.number]
            study.record.occupancy += [
                (self.now_s, trial.bracket, rung, trial.number) for rung in range(rungs, trial.rungs)
            ]
            if isinstance(outcome, Accepted) and outcome.decision and outcome.decision.action != "CONTINUE":
                self._end(run, self._ending(run))
                return
        if not run.alive:
            return
        if run.curve.last_step is not None and run.step >= run.curve.last_step:
            self._exit(run)
        else:
            self._train(run, study.rows.trials[run.lease.number].milestone, self.now_s)

    def _turn_cost(self, run: Run, segment: Segment, *, steps: int) -> TurnCost | None:
        """The cost of a turn of the run's bundle in its present state; one member reports it."""
        if run.study.spec.fuse is None or steps < 1:
            return None
        members = run.study.members(run.grant_id)
        if run is not members[0]:
            return None
        train_s = run.curve.train_s(segment.from_step, segment.to_step) / run.speed * run.crowd
        return TurnCost(members=len(members), turns=steps, time_s=train_s)

    def _exit(self, run: Run) -> None:
        self._step(
            run.study,
            ExitedArrived(
                lease_id=run.lease.id,
                number=run.lease.number,
                attempt=run.lease.attempt,
                sequence=run.next_sequence(),
                outcome="FINISHED",
            ),
        )
        self._end(run, self._ending(run))

    def _ending(self, run: Run) -> str:
        trial = run.study.rows.trials[run.lease.number]
        if trial.state is not State.TERMINATED:
            return "paused"
        return (trial.reason or Reason.CANCELLED).lower()

    def _end(self, run: Run, ending: str) -> None:
        if not run.alive:
            return
        run.alive = False
        record = run.study.record
        if ending == "paused":
            record.pauses += 1
        if ending == "interrupted":
            record.interruptions += 1
        del run.study.runs[run.lease.id]
        record.stays.append(
            Stay(
                trial=run.lease.number,
                worker=run.worker_id,
                slots=run.lease.slots,
                milli=run.lease.milli,
                start_s=run.start_s,
                end_s=self.now_s,
                from_step=run.from_step,
                to_step=run.step,
                ending=ending,
                grant=run.grant_id,
            )
        )
        self._crowd(run)

    # --- machines that fail --------------------------------------------------------------------------

    def _break_later(self, machine_id: int, clock: random.Random) -> None:
        if self._failures.mean_time_s is not None:
            at = self.now_s + clock.expovariate(1.0 / self._failures.mean_time_s)
            self._at(at, (0, 0), lambda: self._break(machine_id, clock), matters=False)

    def _break(self, machine_id: int, clock: random.Random) -> None:
        self.cluster.fail(machine_id)
        self._down[machine_id] = self.now_s
        for study in self.studies:
            for run in [run for run in study.runs.values() if run.worker_id == machine_id]:
                self._end(run, "interrupted")
                self._at(self.now_s + self._failures.detect_s, run.tie, self._expire(run))
        repaired_s = self.now_s + max(self._failures.repair_s, self._failures.detect_s)
        self._at(repaired_s, (1, 0), lambda: self._repair(machine_id, clock))

    def _expire(self, run: Run) -> Callable[[], None]:
        expired = LeaseExpired(
            lease_id=run.lease.id,
            number=run.lease.number,
            attempt=run.lease.attempt,
            sequence=None,
            why=f"{self.cluster.machines[run.worker_id].name} is gone",
        )

        def expire() -> None:
            if not run.study.over:
                self._step(run.study, expired)

        return expire

    def _repair(self, machine_id: int, clock: random.Random) -> None:
        self._count_down(machine_id, self._down.pop(machine_id))
        self.cluster.repair(machine_id)
        for study in self.studies:
            if not study.over and self.cluster.anything_free:
                self._step(study, PlaceNow())
        self._break_later(machine_id, clock)

    def _count_down(self, machine_id: int, since_s: float) -> None:
        machine = self.cluster.machines[machine_id]
        lost_s = 0.0 if machine.owner else (self.now_s - since_s) * machine.slots
        for study in self.studies:
            study.record.down_s += lost_s

    # --- the heap ------------------------------------------------------------------------------------

    def _at(
        self, when_s: float, tie: tuple[int, int], happen: Callable[[], None], *, matters: bool = True
    ) -> None:
        self._waiting += matters

        def count_and_happen() -> None:
            self._waiting -= matters
            happen()

        heapq.heappush(self._heap, (when_s, tie, next(self._order), count_and_happen))

    def _stuck(self) -> str:
        names = ", ".join(study.rows.study.name for study in self.studies if not study.over)
        return (
            f"at {self.now_s:g} s nothing runs and nothing can start, but {names} is not over: "
            f"do its resources fit on one of the {len(self.cluster.machines)} machines?"
        )
