"""Random histories, played on a policy as the scheduler would play them.

A history has a few slots and trials that report, skip rungs, fail, are cancelled while they wait, and are added by
a user when nothing was left to propose. At one random moment the policy is rebuilt from the calls so far, and must
give the same answers. A history ends when nothing runs and nothing may start; the suite also checks that it always
ends.

The methods below "hooks for a comparison" do nothing here. Headrace's own suite uses them to compare every answer
with an oracle.
"""

import math
import random
from collections.abc import Callable
from typing import Any, Self

from headrace.spec import StudySpec
from headrace_services.scheduler.core.policies import (
    Action,
    Policy,
    Promotion,
    RungCost,
    RungResult,
    Verdict,
    make_policy,
)
from headrace_services.scheduler.core.records import Checkpoint, Params

NASTY = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.0, 2.0, -1.0, 3.5, 0.25, 1e300, -1e-300]
"""Values that trials report, including those that do not compare, and a missing metric (None)."""
COSTS = [None, 0.0, 1.0, 5.0, 40.0]
MOST_TURNS = 20
"""More reports for each trial and rung than any study needs."""


class History:
    """One study on a few slots."""

    def __init__(
        self, spec: StudySpec, rng: random.Random, *, flip: bool = False, trouble: bool = True
    ) -> None:
        """With `flip`, values have the opposite sign; without `trouble`, no trial fails, is cancelled or is added."""
        self.rng = rng
        self.spec = spec
        self.policy: Policy = make_policy(spec)
        self.ladders = [self.policy.ladder(bracket) for bracket in range(self.policy.brackets)]
        self.flip, self.trouble = flip, trouble
        self.slots = rng.randint(1, 4)
        self.limit = rng.randint(1, 14)
        self.additions = rng.choice([0, 0, 1, 3]) if trouble else 0
        self.draw: Callable[[int, int], float | None] = rng.choice(
            [self.nasty, self.tied, self.smooth, self.smooth]
        )
        self.arrivals: dict[tuple[int, int], int] = {}
        self.level: dict[int, float] = {}
        self.number = self.sampled = 0
        self.pending: list[tuple[int, int]] = []
        self.running: list[tuple[int, int, int]] = []
        self.paused: dict[int, tuple[int, int]] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.decisions: list[tuple[Any, ...]] = []
        self.rebuild_at = rng.randint(1, 40)

    # --- values --------------------------------------------------------------------------------------

    def nasty(self, trial: int, rung: int) -> float | None:  # noqa: ARG002  (one signature for all)
        """Missing, infinite, equal and tiny values."""
        return self.rng.choice(NASTY)

    def tied(self, trial: int, rung: int) -> float | None:  # noqa: ARG002
        """Two values, so that many are equal."""
        return self.rng.choice([0.5, 0.5, 1.0])

    def smooth(self, trial: int, rung: int) -> float | None:
        """Curves that fall, with a little noise."""
        level = self.level.setdefault(trial, self.rng.choice([0.1, 0.2, 0.3, 0.4, 0.5, 0.75]))
        return level + 1 / (rung + 1) + self.rng.choice([0.0, 0.0, 0.01, -0.01])

    # --- the calls -----------------------------------------------------------------------------------

    @property
    def more(self) -> bool:
        """Whether the sampler has further configurations."""
        return self.sampled < self.limit

    def fold(self, name: str, *args: Any) -> None:
        """Call the policy with a committed fact; some facts arrive twice."""
        self.calls.append((name, args))
        getattr(self.policy, name)(*args)
        if name in ("promoted", "withdraw") and self.trouble and self.rng.random() < 0.1:
            getattr(self.policy, name)(*args)

    def promotion(self) -> Promotion | None:
        """What the policy would promote now."""
        return self.policy.next_promotion(more=self.more)

    def promote(self, said: Promotion) -> None:
        """Let a waiting trial continue."""
        why = said.explanation
        self.decisions.append((said.trial, said.bracket, said.rung, why.rank))
        assert f"rank {why.rank} of {why.results}" in why.sentence, (
            f"the sentence of a promotion does not say 'rank {why.rank} of {why.results}': {why.sentence}"
        )
        self.promoting(said)
        self.pass_on(said.trial, said.bracket, said.rung)
        if said.exploit is not None:
            self.fold("exploited", said.exploit)
            self.exploited(said)
        self.paused.pop(said.trial, None)
        self.running.append((said.trial, said.bracket, said.rung + 1))

    def pass_on(self, trial: int, bracket: int, rung: int) -> None:
        """Promote a trial past a rung."""
        self.tell("promoted", trial, bracket, rung)  # first: an oracle may need the state before
        self.fold("promoted", trial, bracket, rung)

    def end(self, trial: int, *, finished: bool = False) -> None:
        """End a trial; `finished`: without a failure."""
        if finished:
            self.fold("finished_early", trial)
            self.tell("finished_early", trial)
        self.fold("withdraw", trial)
        self.tell("withdraw", trial)
        self.paused.pop(trial, None)

    # --- the core ------------------------------------------------------------------------------------

    def create(self) -> None:
        """Create a trial, which waits for a slot."""
        bracket = self.policy.bracket(self.number)
        params: Params = {"x": self.rng.random()}
        self.fold("joined", self.number, bracket, params)
        self.created(self.number, bracket, params)
        self.pending.append((self.number, bracket))
        self.number += 1

    def propose(self) -> None:
        """Let the sampler propose a trial, if there is one left."""
        if self.more:
            self.sampled += 1
            self.create()

    def fill(self) -> None:
        """Give every free slot a trial, as long as there are any."""
        while len(self.running) < self.slots:
            new_first = self.policy.new_trials_first and (self.pending or self.more)
            said = None if new_first else self.promotion()
            if said is not None:
                self.promote(said)
                continue
            if not self.pending:
                self.propose()
            if not self.pending:
                return
            trial, bracket = self.pending.pop(0)
            self.running.append((trial, bracket, 0))

    def report(self) -> None:
        """Let a running trial report at its next rung, or past it."""
        trial, bracket, rung = self.running.pop(self.rng.randrange(len(self.running)))
        ladder = self.ladders[bracket]
        skipped = self.rng.choice([0, 0, 0, 1, 2]) if self.trouble else 0
        top = min(rung + skipped, len(ladder) - 1)
        last = top == len(ladder) - 1
        step = ladder[top] if last else self.rng.randint(ladder[top], ladder[top + 1] - 1)
        value = self.draw(trial, top)
        value = -value if self.flip and value is not None else value
        saved = Checkpoint(uri=f"{trial}/{step}", step=step) if self.rng.random() < 0.8 else None
        cost = RungCost(
            step_s=self.rng.choice(COSTS), write_s=self.rng.choice(COSTS), read_s=self.rng.choice(COSTS)
        )
        for level in range(rung, top + 1):
            arrival = self.arrivals[bracket, level] = self.arrivals.get((bracket, level), 0) + 1
            result = RungResult(
                trial=trial,
                bracket=bracket,
                rung=level,
                milestone=ladder[level],
                step=step,
                value=value,
                arrival=arrival,
                checkpoint=saved,
                cost=cost,
            )
            self.fold("record", result)
            self.recorded(result)
        for level in range(rung, top):
            self.pass_on(trial, bracket, level)
        if last:
            self.end(trial, finished=True)
        else:
            self.judge(trial, bracket, top)

    def judge(self, trial: int, bracket: int, rung: int) -> None:
        """Ask the policy, and follow its verdict."""
        verdict = self.policy.verdict(trial, bracket, rung, more=self.more)
        self.check(trial, bracket, rung, verdict)
        why = verdict.explanation
        self.decisions.append((trial, verdict.action.name, why.rank, why.results, why.kept))
        if verdict.action is Action.STOP:
            self.end(trial)
        elif verdict.action is Action.CONTINUE:
            self.pass_on(trial, bracket, rung)
            self.running.append((trial, bracket, rung + 1))
        else:
            said = self.promotion()
            if said is not None and said.trial == trial:
                self.promote(said)
            else:
                self.paused[trial] = (bracket, rung)

    def check(self, trial: int, bracket: int, rung: int, verdict: Verdict) -> None:  # noqa: ARG002
        """Check what every explanation must contain."""
        why = verdict.explanation
        assert 1 <= why.rank <= why.results, f"rank {why.rank} of {why.results} results"
        assert why.results <= self.arrivals[bracket, rung], f"{why.results} results, more than there were"
        assert why.cutoff_value is None or math.isfinite(why.cutoff_value), f"a cutoff of {why.cutoff_value}"
        assert f"rank {why.rank} of {why.results}" in why.sentence, (
            f"the sentence does not say 'rank {why.rank} of {why.results}': {why.sentence}"
        )
        assert "\n" not in why.sentence, f"the sentence has several lines: {why.sentence!r}"

    def trouble_strikes(self) -> None:
        """Let a trial fail, cancel one, or add one as a user."""
        strike = self.rng.random()
        if strike < 0.08 and self.running:
            ended = self.running.pop(self.rng.randrange(len(self.running)))[0]
            self.end(ended, finished=strike < 0.02)
        elif strike < 0.13 and self.paused:
            self.end(self.rng.choice(sorted(self.paused)))
        elif strike < 0.16 and self.pending:
            self.end(self.pending.pop(self.rng.randrange(len(self.pending)))[0])
        elif strike < 0.25 and self.additions:
            self.additions -= 1
            self.create()
        elif strike < 0.30:
            self.propose()

    def play(self) -> Self:
        """Play to the end."""
        turns = 0
        while True:
            self.fill()
            if self.trouble:
                self.trouble_strikes()
                self.fill()
            if not self.running:
                if self.pending or self.more or self.promotion() is not None:
                    continue
                break
            self.report()
            turns += 1
            assert turns <= MOST_TURNS * (len(self.ladders[0]) + 1), "the study never ends"
            if turns == self.rebuild_at:
                self.rebuilt_is_the_same()
        self.rebuilt_is_the_same()
        return self

    def rebuilt_is_the_same(self) -> None:
        """Check that the same facts, in commit order and with all trials first, give the same policy."""
        joined = [call for call in self.calls if call[0] == "joined"]
        rest = [call for call in self.calls if call[0] != "joined"]
        for calls in (self.calls, joined + rest):
            fresh = make_policy(self.spec)
            for name, args in calls:
                getattr(fresh, name)(*args)
            for more in (True, False):
                one, other = (repr(p.next_promotion(more=more)) for p in (fresh, self.policy))
                assert one == other, f"rebuilt it promotes {one}, and not {other}"
            for trial, (bracket, rung) in self.paused.items():
                one, other = (
                    repr(p.verdict(trial, bracket, rung, more=self.more)) for p in (fresh, self.policy)
                )
                assert one == other, f"rebuilt it says {one}, and not {other}"

    # --- hooks for a comparison ------------------------------------------------------------------------

    def tell(self, name: str, *args: Any) -> None:
        """The policy is about to get a move, or has got it."""

    def created(self, trial: int, bracket: int, params: Params) -> None:
        """A trial has joined."""

    def recorded(self, result: RungResult) -> None:
        """A result was recorded."""

    def promoting(self, said: Promotion) -> None:
        """A trial is about to be promoted."""

    def exploited(self, said: Promotion) -> None:
        """A trial has copied another one's state."""
