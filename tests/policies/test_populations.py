"""Population-based training on fewer slots than members: the population is compared as a whole, and that matters.

The toy problem is that of the paper (Jaderberg et al., arXiv 1711.09846, Figure 2), in one dimension. A member's
state is a number that gradient steps take to 0, and its hyperparameter is the learning rate. One rate is good, the
others are too small to get anywhere: only a member that copies the good one's state and rate reaches the end.
"""

import pytest
from policy_drive import Driver

from headrace.spec import FloatDomain, Goal, Objective, PbtPolicy, StudySpec
from headrace_services.scheduler.core.policies import Action, RungResult
from headrace_services.scheduler.core.records import Checkpoint, Exploit

RATES = {0: 1e-4, 1: 0.3, 2: 2e-4, 3: 3e-4}
"""The learning rate with which each of four members starts."""


def population(members: int = 4, **policy: object) -> StudySpec:
    return StudySpec(
        objective=Objective(metric="loss", goal=Goal.MINIMIZE),
        space={"lr": FloatDomain(low=1e-4, high=0.5, log=True)},
        policy=PbtPolicy(interval=1, resample_probability=0.0, **policy),
        max_trials=members,
        max_steps=8,
    )


class Cluster:
    """Members that take turns on a few slots, as under the scheduler: the engine's rules for one study."""

    def __init__(self, spec: StudySpec, slots: int, *, copies: bool = True) -> None:
        self.driver = Driver(spec)
        self.slots, self.copies = slots, copies
        self.state = dict.fromkeys(RATES, 1.0)
        self.rate = dict(RATES)
        self.saved: dict[str, float] = {}
        self.exploits: list[Exploit] = []
        self.values: dict[int, dict[int, float]] = {}
        for trial, rate in RATES.items():
            self.driver.call("joined", trial, 0, {"lr": rate})

    def run(self) -> None:
        running = [(trial, 0) for trial in RATES][: self.slots]
        unstarted = [(trial, 0) for trial in RATES][self.slots :]
        while running:
            trial, rung = running.pop(0)
            self.train(trial, rung)
            while len(running) < self.slots and unstarted:
                running.append(unstarted.pop(0))
            while len(running) < self.slots:
                said = self.driver.policy.next_promotion(more=False)
                if said is None:
                    break
                self.driver.call("promoted", said.trial, 0, said.rung)
                if said.exploit is not None and self.copies:
                    self.driver.call("exploited", said.exploit)
                    self.exploits.append(said.exploit)
                    self.state[said.trial] = self.saved[said.exploit.checkpoint.uri]
                    self.rate[said.trial] = float(said.exploit.params["lr"])
                running.append((said.trial, said.rung + 1))

    def train(self, trial: int, rung: int) -> None:
        """Train to the next rung and report: ten gradient steps on x²/2."""
        self.state[trial] *= (1 - self.rate[trial]) ** 10
        uri = f"{trial}/{rung}"
        self.saved[uri] = self.state[trial]
        value = self.state[trial] ** 2 / 2
        self.values.setdefault(rung, {})[trial] = value
        self.driver.arrivals[0, rung] += 1
        milestone = self.driver.policy.ladder(0)[rung]
        result = RungResult(
            trial=trial,
            bracket=0,
            rung=rung,
            milestone=milestone,
            step=milestone,
            value=value,
            arrival=self.driver.arrivals[0, rung],
            checkpoint=Checkpoint(uri=uri, step=milestone),
        )
        self.driver.call("record", result)
        if rung == len(self.driver.policy.ladder(0)) - 1:
            self.driver.call("withdraw", trial)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_at_every_rung_the_worst_of_four_copies_the_best(slots: int) -> None:
    cluster = Cluster(population(), slots)
    cluster.run()
    rungs = len(cluster.driver.policy.ladder(0)) - 1
    assert sorted(cluster.values) == list(range(rungs + 1))
    for rung in range(rungs):
        values = cluster.values[rung]
        assert len(values) == 4
        worst, best = (
            max(values, key=lambda trial: values[trial]),
            min(values, key=lambda trial: values[trial]),
        )
        assert [(one.number, one.donor) for one in cluster.exploits if one.rung == rung] == [(worst, best)]


@pytest.mark.parametrize("slots", [2, 4])
def test_what_is_copied_matters(slots: int) -> None:
    """After eight rungs all members have the good rate's state. Without copies three of four are still where they
    started."""
    cluster, alone = Cluster(population(), slots), Cluster(population(), slots, copies=False)
    cluster.run()
    alone.run()
    last = max(cluster.values)
    assert max(cluster.values[last].values()) < 1e-6
    assert sorted(alone.values[last].values())[1] > 0.4


def test_which_member_copies_does_not_depend_on_the_number_of_slots() -> None:
    found = []
    for slots in (1, 2, 3, 4):
        cluster = Cluster(population(), slots)
        cluster.run()
        found.append(sorted((one.rung, one.number, one.donor, one.params["lr"]) for one in cluster.exploits))
    assert found[0] == found[1] == found[2] == found[3]


def test_a_member_that_cannot_be_among_the_worst_waits_for_nobody() -> None:
    driver = Driver(population(members=8))
    driver.join(*range(8))
    goes: list[int] = []
    for trial, value in enumerate([5.0, 4.0, 6.0, 1.0]):
        driver.record(trial, value)
        goes += driver.promote_all(more=False)
    assert goes == [1, 3]  # two of eight copy: these have two results after them
    why = driver.policy.verdict(0, 0, 0, more=False)
    assert why.action is Action.PAUSE
    assert (
        "it may be among the worst 2 and waits for 4 more members of the population"
        in why.explanation.sentence
    )


def test_a_member_that_is_lost_is_waited_for_no_more() -> None:
    """Three of four are left, so a quarter of them is less than one: the worst still copies."""
    driver = Driver(population())
    driver.join(*range(4))
    for trial, value in enumerate([0.1, 0.9, 0.5]):
        result = driver.record(trial, value)
        assert result.rung == 0
    assert driver.promote_all(more=False) == [0, 2]
    driver.call("withdraw", 3)
    said = driver.policy.next_promotion(more=False)
    assert said is not None
    assert said.trial == 1
    assert "it is among the worst" in said.explanation.sentence
