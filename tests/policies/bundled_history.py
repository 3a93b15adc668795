"""Random histories that the scheduler's core plays in the simulator, with trials in bundles of up to four.

The history takes the place of the core's policy: it passes each call on, informs the oracle, and compares each
answer with the oracle's. The trials' events are drawn as in `History`: values, rungs that a report skips, trials
that fail, are stopped or added. Here bundles also die with all their members, and machines fail.
"""

import random
import sys
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from oracles_synchronous import PbtOracle
from policy_histories import History, spec_of

from headrace.errors import HeadraceError
from headrace.spec import StudySpec
from headrace_services.scheduler.core.inputs import AddTrials, ExitedArrived, StopTrial
from headrace_services.scheduler.core.lifecycle import State, StudyState
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.costs import Costs, Failures
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

sys.path.insert(0, str(Path(__file__).parent.parent / "simulator"))

from bundle_records import most_at_once

MOST = 4


@cache
def fused_spec_of(kind, variant, goal):
    fused = {"template": {"callable": "train:train", "working_dir": "/"}, "fuse": {"most": MOST}}
    return StudySpec.model_validate({**spec_of(kind, variant, goal).model_dump(mode="json"), **fused})


class BundledHistory(History):
    """One study on a few slots, each with a bundle."""

    def __init__(self, kind, seed, **options):
        super().__init__(kind, seed, specs=fused_spec_of, **options)
        self.asked_more = True
        self.chance = random.Random(f"bundles {seed}")
        self.verdicts = 0
        self.reported = {}

    @property
    def more(self):
        return self.asked_more

    # --- the study -----------------------------------------------------------------------------------

    def play(self):
        costs = self.chance.choice(
            (Costs(), Costs(write_s=0.3, read_s=0.2, start_s=0.5, crowding={2: 1.1, 4: 1.3}))
        )
        self.study = StudySimulation.of(self.spec, self, costs=costs)
        self.study.rows.fold.policy = self
        mean_time_s = self.chance.choice((None, 30.0)) if self.trouble else None
        failures = Failures(
            mean_time_s=mean_time_s, detect_s=1.0, repair_s=2.0, seed=self.chance.randrange(99)
        )
        self.simulation = Simulation(machines(self.slots), [self.study], failures=failures)
        if self.trouble:
            for happen in (*[self.stop] * 2, *[self.add] * self.additions, self.fail, self.kill):
                self.at_some_time(happen)
        self.simulation.run()
        trials = self.study.rows.trials.values()
        assert self.study.rows.study.state in (StudyState.COMPLETED, StudyState.FAILED)
        assert {trial.state for trial in trials} <= {State.TERMINATED}
        assert self.policy.next_promotion(more=False) is None
        self.rebuilt_is_the_same()
        self.at_once = max(most_at_once(self.study.record).values(), default=0)
        assert self.at_once <= MOST
        return self

    def at_some_time(self, happen):
        def if_it_runs():
            if not self.study.over:
                happen()

        self.simulation._at(self.chance.uniform(0.0, 20.0), (0, 0), if_it_runs)

    def stop(self):
        if self.study.rows.trials:
            number = self.chance.randrange(len(self.study.rows.trials))
            self.command(StopTrial(number=number, reason="a user's"))

    def add(self):
        self.command(AddTrials(params=({"x": self.chance.random()},)))

    def command(self, one):
        try:
            self.simulation._step(self.study, one)
        except HeadraceError:
            return  # refused: the trial has ended

    def fail(self):
        """Let one member's own program fail."""
        for run in self.someone():
            self.exit(run, "FAILED", "failed")

    def kill(self):
        """Kill a process with all its members."""
        for run in self.someone():
            for member in self.study.members(run.grant_id):
                self.exit(member, "LOST", "interrupted")

    def someone(self):
        return self.chance.sample(
            sorted(self.study.runs.values(), key=lambda run: run.lease.id), k=bool(self.study.runs)
        )

    def exit(self, run, outcome, ending):
        exited = ExitedArrived(
            lease_id=run.lease.id,
            number=run.lease.number,
            attempt=run.lease.attempt,
            sequence=run.next_sequence(),
            outcome=outcome,
            error="ValueError: drawn",
        )
        self.simulation._end(run, ending)
        self.simulation._step(self.study, exited)

    # --- its curves ----------------------------------------------------------------------------------

    @property
    def size(self):
        return self.limit

    def params(self, number):
        del number
        return {"x": self.rng.random()}

    def curve(self, number):
        return DrawnCurve(self, number, self.chance.uniform(0.5, 2.0))

    # --- its policy: what the core asks and reports ----------------------------------------------------------

    def __getattr__(self, name):
        return getattr(self.policy, name)

    def joined(self, trial, bracket, params):
        self.fold("joined", trial, bracket, params)
        self.tell("joined", trial, bracket)
        if isinstance(self.oracle, PbtOracle):
            self.oracle.params[trial] = [(0, params)]

    def record(self, result):
        assert repr(result.value) == repr(self.reported[result.trial, result.step]), "it was reported so"
        self.arrivals[result.bracket, result.rung] = result.arrival
        self.fold("record", result)
        place = result.trial, result.bracket, result.rung
        self.tell("record", *place, result.value, result.step, result.cost)
        if isinstance(self.oracle, PbtOracle):
            self.oracle.saved[result.trial, result.rung] = result.checkpoint

    def promoted(self, trial, bracket, rung):
        self.pass_on(trial, bracket, rung)

    def exploited(self, exploit):
        self.fold("exploited", exploit)
        if isinstance(self.oracle, PbtOracle):
            self.note_exploit(exploit)

    def withdraw(self, trial):
        self.end(trial)

    def next_promotion(self, *, more=True):
        self.asked_more = more
        said = self.promotion()
        if said is not None and isinstance(self.oracle, PbtOracle):
            self.check_exploit(said)
        return said

    def verdict(self, trial, bracket, rung, *, more=True):
        self.asked_more = more
        verdict = self.policy.verdict(trial, bracket, rung, more=more)
        self.check(trial, bracket, rung, verdict)
        why = verdict.explanation
        self.decisions.append((trial, verdict.action.name, why.rank, why.results, why.kept))
        self.verdicts += 1
        if self.verdicts == self.rebuild_at:
            self.rebuilt_is_the_same()
        return verdict


@dataclass
class DrawnCurve:
    """A trial whose reports are drawn when they arrive."""

    history: BundledHistory
    number: int
    step_s: float
    last_step = None

    def report_step(self, after, milestone):
        least = max(milestone, after + 1)
        jumps = self.history.trouble and self.history.rng.random() < 0.2
        return self.history.rng.randint(least, max(least, self.history.spec.max_steps)) if jumps else least

    def value(self, step):
        history = self.history
        ladder = history.ladders[history.policy.bracket(self.number)]
        value = history.draw(self.number, max(0, bisect_right(ladder, step) - 1))
        value = -value if history.flip and value is not None else value
        history.reported[self.number, step] = value
        return value

    def train_s(self, start, end):
        return (end - start) * self.step_s

    def points(self, start, end):
        del start, end
        return ()
